//! Token bucket: a level of used ticks that may rise to the capacity and drains at the refill rate.
//! `RawState` is `[ticks, _, _]`.

use super::{Algorithm, RawState, State};
use crate::quota::TokenBucket;

/// The maximum stored level, so that debt stays in the exact range.
const MAX_TICKS: u64 = 1 << 49;

impl TokenBucket {
    fn full(&self) -> u64 {
        self.capacity * self.per
    }

    /// Converts ticks that another version of this quota may have written. Uses floating point, as the script
    /// does.
    fn ticks(&self, ticks: u64, per: u64) -> u64 {
        if per == self.per {
            return ticks;
        }
        let units = ticks as f64 / per as f64;
        ((units * self.per as f64 + 0.5).floor() as u64).min(MAX_TICKS)
    }

    /// Returns the end of the step in which a level becomes empty. Rounding expiries to steps leaves most of
    /// them unchanged by a charge.
    fn kept_until(&self, ticks: u64, at_us: u64) -> u64 {
        let step = self.full() / (8 * self.rate) + 1;
        let empty = at_us + self.drained_after(ticks);
        empty - empty % step + step
    }

    pub(super) fn cost(&self, units: u64) -> u64 {
        units.saturating_mul(self.per)
    }

    /// Returns the time to drain `ticks`.
    pub(super) fn drained_after(&self, ticks: u64) -> u64 {
        ticks.div_ceil(self.rate)
    }
}

impl Algorithm for TokenBucket {
    fn fields(&self) -> usize {
        1
    }

    fn is_possible(&self, [ticks, ..]: RawState, _: u64) -> bool {
        ticks <= MAX_TICKS
    }

    fn settle(&self, state: &State, now: u64) -> RawState {
        let State::Level { ticks, by: [_, _, per], at_us } = *state else { return [0; 3] };
        let drained = u128::from(now.saturating_sub(at_us)) * u128::from(self.rate);
        let ticks = u128::from(self.ticks(ticks, per)).saturating_sub(drained);
        [ticks as u64, 0, 0]
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        matches!(*state, State::Level { at_us, .. } if at_us > now)
    }

    fn afford(&self, [ticks, ..]: RawState, n: u64, cost: u64, _: u64, _: Option<u64>) -> u64 {
        n.min(self.full().saturating_sub(ticks) / self.cost(cost))
    }

    fn charge(&self, state: &mut State, raw: RawState, units: u64, now: u64) {
        let [ticks, ..] = self.after(raw, units, now);
        *state = State::Level { ticks, by: self.numbers(), at_us: now };
    }

    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool {
        let [ticks, ..] = self.settle(state, now);
        // These units have been draining since their charge.
        let since = now.saturating_sub(stamp.unwrap_or(now));
        let drained = u128::from(since) * u128::from(self.rate);
        let left =
            (u128::from(units) * u128::from(self.per)).saturating_sub(drained).min(ticks.into()) as u64;
        if left > 0 {
            *state = State::Level { ticks: ticks - left, by: self.numbers(), at_us: now };
        }
        left > 0
    }

    fn after(&self, [ticks, ..]: RawState, units: u64, _: u64) -> RawState {
        [ticks.saturating_add(self.cost(units)).min(MAX_TICKS), 0, 0]
    }

    fn remaining(&self, [ticks, ..]: RawState, _: u64) -> u64 {
        self.full().saturating_sub(ticks) / self.per
    }

    fn retry_after(&self, [ticks, ..]: RawState, cost: u64, _: Option<u64>, _: u64) -> u64 {
        self.drained_after((ticks + self.cost(cost)).saturating_sub(self.full()))
    }

    fn reset_after(&self, [ticks, ..]: RawState, _: u64) -> u64 {
        self.drained_after(ticks)
    }

    fn kept_until(&self, [ticks, ..]: RawState, now: u64) -> u64 {
        self.kept_until(ticks, now)
    }

    fn was_kept_until(&self, state: &State) -> Option<u64> {
        match *state {
            State::Level { ticks, by, at_us } if by == self.numbers() => Some(self.kept_until(ticks, at_us)),
            _ => None,
        }
    }

    fn lengthens(&self) -> bool {
        true
    }
}

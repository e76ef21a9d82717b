//! Token bucket: a level of used ticks that may rise to the capacity and drains at the refill rate.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::definition::{
    Algorithm, Definition, Parameters, RawState, State, Storage, deserialize, exact_number,
};
use crate::error::Error;
use crate::quota::{Invalid, MAX_UNITS, Rate};
use crate::script::scripts;

pub(super) static DEFINITION: Definition = Definition {
    name: "token_bucket",
    scripts: scripts!("token_bucket", "fast_token_bucket", "hash_state", "token_bucket"),
    storage: Storage::Text,
    fields: 1,
    work: 2,
    token_code: Some(0),
    parameters: Parameters::Rate,
    words: "burst",
    limit_name: "CAPACITY",
    help: "A bucket of this many units, refilled at --rate",
};

/// The maximum level of a full bucket. Below 2^48 ticks every sum of levels is exact in a double.
const MAX_FULL: u64 = 1 << 48;

/// The maximum stored level, so that debt stays in the exact range.
const MAX_TICKS: u64 = 1 << 49;

/// The numbers of a [token bucket](crate::Quota::token_bucket). A unit is `per` ticks, and `rate` ticks drain
/// per µs. So all arithmetic is in integers.
///
/// Its [`RawState`] is `[ticks, 0, 0]`: the used ticks.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TokenBucket {
    /// The limit, in units, from 1 to 2^48. The limit in ticks, `capacity * per`, is at most 2^48 too.
    pub capacity: u64,
    /// The ticks that drain per µs. `rate / per` is a fraction in lowest terms: units per µs.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub rate: u64,
    /// The ticks per unit.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub per: u64,
    /// The rate as configured, for [`std::fmt::Display`].
    #[cfg_attr(feature = "serde", serde(rename = "rate"))]
    pub(super) configured_rate: Rate,
}

deserialize!(TokenBucket { capacity: u64, rate: Rate } Self::build(capacity, rate));

impl PartialEq for TokenBucket {
    fn eq(&self, other: &Self) -> bool {
        self.numbers() == other.numbers()
    }
}

impl Eq for TokenBucket {}

impl Hash for TokenBucket {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers().hash(state);
    }
}

impl TokenBucket {
    pub(crate) const fn build(capacity: u64, configured_rate: Rate) -> Result<Self, Invalid> {
        if capacity == 0 || capacity > MAX_UNITS {
            return Err(Invalid("a capacity must be 1 to 2^48 units"));
        }
        let (units, period_us) = (configured_rate.units(), configured_rate.period().as_micros() as u64);
        let (rate, per) = fraction_below(units, period_us, MAX_FULL / capacity);
        // A rate of 0 means that the rate is below every representable fraction. It is then also too slow to
        // fill the capacity in time.
        if rate == 0 || (capacity * per).div_ceil(rate) > MAX_FULL {
            return Err(Invalid(
                "this rate needs more than 2^48 us (8.9 years) to fill the capacity: raise the rate or lower the capacity",
            ));
        }
        Ok(Self { capacity, rate, per, configured_rate })
    }

    /// Makes the quota from its [`args`](Self::args).
    pub(super) fn of_args(args: [u64; 4]) -> Result<Self, Error> {
        let [capacity, units, period_us, _] = args;
        let rate = Rate::try_new(units, Duration::from_micros(period_us))?;
        Self::build(capacity, rate).map_err(Invalid::into_error)
    }

    pub(super) fn share(&self, instances: u64) -> Self {
        self.divided(instances)
    }

    /// Returns the arguments of the scripts: see [`Kind::args`](super::Kind::args).
    pub(super) const fn args(&self) -> [u64; 4] {
        [self.capacity, self.rate, self.per, 0]
    }

    /// Returns the numbers that define the bucket. Equal rates in different notation have equal numbers.
    const fn numbers(&self) -> [u64; 3] {
        [self.capacity, self.rate, self.per]
    }

    /// Returns the bucket of one of `instances`: the capacity is rounded up, and the rate is never above its
    /// part.
    pub(super) fn divided(&self, instances: u64) -> Self {
        let capacity = self.capacity.div_ceil(instances);
        let max_per = MAX_FULL / capacity;
        let (rate, per) = match fraction_below(self.rate, self.per * instances, max_per) {
            // Below the slowest rate that a bucket can have.
            (0, _) => (1, max_per),
            fraction => fraction,
        };
        Self { capacity, rate, per, ..*self }
    }

    /// Parses a stored level: the state, and the arguments of the quota that wrote it.
    pub(super) fn parse_level(text: &str) -> Option<(State, [u64; 4])> {
        let (ticks, rest) = text.split_once('/')?;
        let (per, rest) = rest.split_once(" of ")?;
        let (capacity, rest) = rest.split_once(", ")?;
        let (rate, at) = rest.split_once("/us at ")?;
        let by @ [capacity, rate, per] = [exact_number(capacity)?, exact_number(rate)?, exact_number(per)?];
        let state = State::Level { ticks: exact_number(ticks)?, by, at_us: exact_number(at)? };
        // Chooses a period in which the rate is a whole number.
        let whole = |period_us: u64| {
            let ticks = u128::from(rate) * u128::from(period_us);
            let units = u64::try_from(ticks.checked_div(u128::from(per))?).ok()?;
            let args = [capacity, units, period_us, 0];
            (ticks % u128::from(per) == 0 && Self::of_args(args).is_ok()).then_some(args)
        };
        let exact = [1, 60, 3_600, 86_400].into_iter().find_map(|seconds| whole(seconds * 1_000_000));
        let args = exact.unwrap_or([capacity, rate, per, 0]);
        Self::of_args(args).is_ok().then_some((state, args))
    }

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

    fn room(&self, most: u64, [ticks, ..]: RawState, _: u64) -> u64 {
        self.cost(most).min(MAX_TICKS).saturating_sub(ticks) / self.per
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

    fn rate(&self) -> Option<Rate> {
        Some(self.configured_rate)
    }

    fn window_us(&self) -> u64 {
        // Cannot overflow: the capacity in ticks is at most 2^48.
        self.drained_after(self.full())
    }

    fn used(&self, [ticks, ..]: RawState, _: u64) -> f64 {
        ticks as f64 / self.per as f64
    }

    fn parse(&self, text: &str) -> Option<(State, Option<[u64; 4]>)> {
        Self::parse_level(text).map(|(state, args)| (state, Some(args)))
    }
}

/// Returns the largest fraction in lowest terms that is at most `n / d` and whose denominator is at most
/// `max_denominator`. This is `n / d` itself if its denominator fits.
///
/// Walks the Stern-Brocot tree between `low <= n/d < high`, many steps at a time.
const fn fraction_below(n: u64, d: u64, max_denominator: u64) -> (u64, u64) {
    let (n, d, max_denominator) = (n as u128, d as u128, max_denominator as u128);
    let (mut low, mut high) = ((0u128, 1u128), (1u128, 0u128));
    loop {
        let over = high.0 * d - n * high.1;
        let under = n * low.1 - low.0 * d;
        let mut steps = under / over;
        if high.1 > 0 && steps > (max_denominator - low.1) / high.1 {
            steps = (max_denominator - low.1) / high.1;
        }
        low = (low.0 + steps * high.0, low.1 + steps * high.1);
        let under = n * low.1 - low.0 * d;
        if under == 0 || low.1 + high.1 > max_denominator {
            return (low.0 as u64, low.1 as u64);
        }
        let mut steps = (over - 1) / under;
        if steps > (max_denominator - high.1) / low.1 {
            steps = (max_denominator - high.1) / low.1;
        }
        high = (high.0 + steps * low.0, high.1 + steps * low.1);
        if low.1 + high.1 > max_denominator {
            return (low.0 as u64, low.1 as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_that_fits_is_kept_in_lowest_terms() {
        assert_eq!(fraction_below(5, 60_000_000, 1 << 40), (1, 12_000_000));
        assert_eq!(fraction_below(2_000_000, 1_000_000, 1), (2, 1));
    }

    #[test]
    fn a_fraction_that_does_not_fit_is_the_largest_one_below() {
        for n in 1..60 {
            for d in 1..60 {
                for max_denominator in 1..30 {
                    // Tries all candidates: the largest p/q <= n/d with q <= max_denominator.
                    let best = (1..=max_denominator).map(|q| (n * q / d, q)).fold((0, 1), |best, next| {
                        if next.0 * best.1 > best.0 * next.1 { next } else { best }
                    });
                    assert_eq!(
                        fraction_below(n, d, max_denominator),
                        best,
                        "{n}/{d} up to {max_denominator}"
                    );
                }
            }
        }
    }
}

//! Sliding counter: this window's count, plus the overlapping share of the previous window's count, rounded
//! down.

use std::time::Duration;

use super::definition::{
    Algorithm, Definition, Parameters, RawState, State, Storage, deserialize, exact_number,
};
use crate::error::Error;
use crate::quota::{Invalid, Window, limit_and_window};
use crate::script::scripts;

pub(super) static DEFINITION: Definition = Definition {
    name: "sliding_counter",
    scripts: scripts!("sliding_counter", "fast_sliding_counter", "hash_state", "sliding_counter"),
    storage: Storage::Text,
    fields: 2,
    work: 3,
    token_code: Some(4),
    parameters: Parameters::Window,
    words: "sliding counter",
    limit_name: "LIMIT",
    help: "The approximate units in any period of --window",
};

/// The maximum count, so that debt stays exact in a double.
const MAX_UNITS: u64 = 1 << 52;
/// The maximum product of limit and window, so that the product is exact in a double.
const MAX_UNIT_MICROS: u64 = 1 << 52;

/// The numbers of a [sliding counter](crate::Quota::sliding_counter).
///
/// Its [`RawState`] is `[current, previous, 0]`: the used units in the current window of the clock, and in
/// the window before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SlidingCounter {
    /// The units per window, from 1 to 2^48. `limit * window_us` is at most 2^52.
    pub limit: u64,
    /// The length of a window, in µs, from 1 ms to ten years.
    pub window_us: u64,
}

deserialize!(SlidingCounter { limit: u64, window_us: u64 } {
    Self::build(limit, Duration::from_micros(window_us))
});

impl SlidingCounter {
    pub(crate) const fn build(limit: u64, window: Duration) -> Result<Self, Invalid> {
        match limit_and_window(limit, window) {
            Ok(window_us) if limit > MAX_UNIT_MICROS / window_us => Err(Invalid(
                "a sliding counter's limit times its window in microseconds must be at most 2^52: shorten the window or use another algorithm",
            )),
            Ok(window_us) => Ok(Self { limit, window_us }),
            Err(invalid) => Err(invalid),
        }
    }

    /// Makes the quota from its [`args`](Self::args).
    pub(super) fn of_args(args: [u64; 4]) -> Result<Self, Error> {
        let [limit, window_us, ..] = args;
        Self::build(limit, Duration::from_micros(window_us)).map_err(Invalid::into_error)
    }

    pub(super) fn share(&self, instances: u64) -> Self {
        Self { limit: self.limit.div_ceil(instances), ..*self }
    }

    /// Returns the arguments of the scripts: see [`Kind::args`](super::Kind::args).
    pub(super) const fn args(&self) -> [u64; 4] {
        [self.limit, self.window_us, 0, 0]
    }

    fn start_at(&self, now: u64) -> u64 {
        now - now % self.window_us
    }

    /// Uses 128 bits, since the product of a debt and a window exceeds 64 bits.
    fn estimate(&self, [current, previous, _]: RawState, now: u64) -> u64 {
        let (previous, window) = (u128::from(previous), u128::from(self.window_us));
        let rest = window - u128::from(now % self.window_us);
        current + (previous * rest / window) as u64
    }

    /// Returns the earliest instant at which the estimate is at most `room` without further checks; it may
    /// have passed.
    fn until(&self, room: u64, [current, previous, _]: RawState, now: u64) -> u64 {
        let window = self.window_us;
        let end = self.start_at(now) + window;
        match room.checked_sub(current) {
            Some(rest) if previous <= rest => now,
            Some(rest) => end - ((rest + 1) * window).div_ceil(previous) + 1,
            // Only after this window has become the previous one, and part of it has left the sliding window.
            None => end + window - ((room + 1) * window).div_ceil(current) + 1,
        }
    }
}

impl Algorithm for SlidingCounter {
    fn is_possible(&self, [current, previous, _]: RawState, _: u64) -> bool {
        current.max(previous) <= MAX_UNITS
    }

    fn settle(&self, state: &State, now: u64) -> RawState {
        let State::Counter { current, previous, start_us } = *state else { return [0; 3] };
        let (current, previous) = (current.min(MAX_UNITS), previous.min(MAX_UNITS));
        let start = self.start_at(now);
        if start_us >= start {
            [current, previous, 0]
        } else if start_us + self.window_us >= start {
            [0, current, 0]
        } else {
            [0; 3]
        }
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        matches!(*state, State::Counter { start_us, .. } if start_us > now)
    }

    fn afford(&self, raw: RawState, n: u64, cost: u64, now: u64, _: Option<u64>) -> u64 {
        n.min(self.limit.saturating_sub(self.estimate(raw, now)) / cost)
    }

    fn charge(&self, state: &mut State, raw: RawState, units: u64, now: u64) {
        let [current, previous, _] = self.after(raw, units, now);
        *state = State::Counter { current, previous, start_us: self.start_at(now) };
    }

    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool {
        let [mut current, mut previous, _] = self.settle(state, now);
        let before = current + previous;
        let start_us = self.start_at(now);
        let stamp = stamp.unwrap_or(now);
        if stamp >= start_us {
            current = current.saturating_sub(units);
        } else if stamp + self.window_us >= start_us {
            previous = previous.saturating_sub(units);
        }
        let has_changed = current + previous < before;
        if has_changed {
            *state = State::Counter { current, previous, start_us };
        }
        has_changed
    }

    fn counts_for(&self, _: u64) -> u64 {
        2 * self.window_us
    }

    fn after(&self, [current, previous, _]: RawState, units: u64, _: u64) -> RawState {
        [current.saturating_add(units).min(MAX_UNITS), previous, 0]
    }

    fn remaining(&self, raw: RawState, now: u64) -> u64 {
        self.limit.saturating_sub(self.estimate(raw, now))
    }

    /// Uses floating point, as the script does: the product of a debt and a window can be inexact.
    fn room(&self, most: u64, [current, previous, _]: RawState, now: u64) -> u64 {
        let overlap = (self.window_us - now % self.window_us) as f64;
        let rest = (previous as f64 * overlap / self.window_us as f64).floor() as u64;
        most.min(MAX_UNITS).saturating_sub(current).saturating_sub(rest)
    }

    fn retry_after(&self, raw: RawState, cost: u64, _: Option<u64>, now: u64) -> u64 {
        self.until(self.limit - cost, raw, now).saturating_sub(now)
    }

    fn reset_after(&self, raw: RawState, now: u64) -> u64 {
        self.until(0, raw, now).saturating_sub(now)
    }

    /// Keeps the key while either count can matter.
    fn kept_until(&self, [current, previous, _]: RawState, now: u64) -> u64 {
        let end = self.start_at(now) + self.window_us;
        match (current, previous) {
            (1.., _) => end + self.window_us,
            (_, 1..) => end,
            _ => now,
        }
    }

    fn window(&self) -> Option<Window> {
        Some(Window { us: self.window_us, aligned_us: None, calendar: None })
    }

    fn leased_until(&self, stamp: u64) -> Option<u64> {
        Some(self.start_at(stamp) + self.window_us)
    }

    fn used(&self, raw: RawState, now: u64) -> f64 {
        self.estimate(raw, now) as f64
    }

    fn parse(&self, text: &str) -> Option<(State, Option<[u64; 4]>)> {
        let (counts, start) = text.split_once(" since ")?;
        let (current, previous) = counts.split_once('+')?;
        let (current, previous) = (exact_number(current)?, exact_number(previous)?);
        Some((State::Counter { current, previous, start_us: exact_number(start)? }, None))
    }
}

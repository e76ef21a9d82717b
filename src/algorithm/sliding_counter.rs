//! Sliding counter: this window's count, plus the overlapping share of the previous window's count, rounded
//! down. `RawState` is `[current, previous, _]`, in the clock's current window.

use super::{Algorithm, RawState, State};
use crate::quota::SlidingCounter;

/// The maximum count, so that debt stays exact in a double.
const MAX_UNITS: u64 = 1 << 52;

impl SlidingCounter {
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
    fn fields(&self) -> usize {
        2
    }

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

    fn after(&self, [current, previous, _]: RawState, units: u64, _: u64) -> RawState {
        [current.saturating_add(units).min(MAX_UNITS), previous, 0]
    }

    fn remaining(&self, raw: RawState, now: u64) -> u64 {
        self.limit.saturating_sub(self.estimate(raw, now))
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
}

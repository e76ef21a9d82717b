//! Fixed window: a count that restarts with each window. `RawState` is `[used, end_ms, _]`; with nothing
//! used, `end_ms` is that of the window that a charge would begin.

use super::{Algorithm, EXACT, RawState, State};
use crate::quota::FixedWindow;

/// The maximum count, so that debt stays exact in a double.
const MAX_UNITS: u64 = 1 << 52;

impl FixedWindow {
    /// Returns the end of the window that a charge would begin. Windows begin and end with a millisecond,
    /// since Redis expires keys by the millisecond.
    fn end_ms(&self, now: u64) -> u64 {
        let now = now - now % 1_000;
        let start = match self.aligned_us {
            None => now,
            Some(offset) => now - (now + self.window_us - offset) % self.window_us,
        };
        (start + self.window_us).div_ceil(1_000)
    }

    /// Returns whether a window with this end can contain `now`. If it ends later, the server's clock was
    /// stepped back.
    fn contains(&self, end_ms: u64, now: u64) -> bool {
        let latest = self.end_ms(now);
        let earliest = if self.aligned_us.is_some() { latest } else { now / 1_000 + 1 };
        (earliest..=latest).contains(&end_ms)
    }
}

impl Algorithm for FixedWindow {
    fn fields(&self) -> usize {
        2
    }

    fn is_possible(&self, [used, end_ms, _]: RawState, now: u64) -> bool {
        used <= EXACT && self.contains(end_ms, now)
    }

    fn settle(&self, state: &State, now: u64) -> RawState {
        match *state {
            State::Window { used, end_ms } if used > 0 && end_ms * 1_000 > now => {
                let end_ms = if self.contains(end_ms, now) { end_ms } else { self.end_ms(now) };
                [used, end_ms, 0]
            }
            _ => [0, self.end_ms(now), 0],
        }
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        let [used, settled_ms, _] = self.settle(state, now);
        matches!(*state, State::Window { end_ms, .. } if used > 0 && end_ms != settled_ms)
    }

    fn afford(&self, [used, ..]: RawState, n: u64, cost: u64, _: u64, _: Option<u64>) -> u64 {
        n.min(self.limit.saturating_sub(used) / cost)
    }

    fn charge(&self, state: &mut State, raw: RawState, units: u64, now: u64) {
        let [used, end_ms, _] = self.after(raw, units, now);
        *state = State::Window { used, end_ms };
    }

    /// Returns the end of the window, since its start is not stored.
    fn stamp(&self, [_, end_ms, _]: RawState, _: u64) -> u64 {
        end_ms * 1_000
    }

    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool {
        let [used, settled_ms, _] = self.settle(state, now);
        let State::Window { end_ms, .. } = *state else { return false };
        let counts = units.min(used) > 0 && stamp.is_none_or(|stamp| stamp == end_ms * 1_000);
        if counts {
            *state = State::Window { used: used.saturating_sub(units), end_ms: settled_ms };
        }
        counts
    }

    fn after(&self, [used, end_ms, _]: RawState, units: u64, _: u64) -> RawState {
        [used.saturating_add(units).min(MAX_UNITS), end_ms, 0]
    }

    fn remaining(&self, [used, ..]: RawState, _: u64) -> u64 {
        self.limit.saturating_sub(used)
    }

    fn retry_after(&self, raw: RawState, cost: u64, _: Option<u64>, now: u64) -> u64 {
        if raw[0] + cost > self.limit { self.reset_after(raw, now) } else { 0 }
    }

    fn reset_after(&self, [used, end_ms, _]: RawState, now: u64) -> u64 {
        if used > 0 { end_ms * 1_000 - now } else { 0 }
    }
}

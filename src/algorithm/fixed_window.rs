//! Fixed window: a count that starts anew with each window.
//! `Seen` is `[used, start_us, _]`; where nothing is used, `start_us` is that of
//! the window that a charge would begin.

use super::{Algorithm, EXACT, Seen, State};
use crate::quota::FixedWindow;

/// The most that is ever stored, so that debt stays exact in a double.
const MOST_UNITS: u64 = 1 << 52;

impl FixedWindow {
    fn start_at(&self, now: u64) -> u64 {
        match self.aligned_us {
            Some(offset) => now - now.saturating_sub(offset) % self.window_us,
            None => now,
        }
    }
}

impl Algorithm for FixedWindow {
    fn fields(&self) -> usize {
        2
    }

    fn is_possible(&self, [used, start_us, _]: Seen, now: u64) -> bool {
        used <= EXACT && start_us <= now && now - start_us < self.window_us
    }

    fn settle(&self, state: &State, now: u64) -> Seen {
        match *state {
            State::Window { used, start_us } if used > 0 && start_us + self.window_us > now => {
                // Only a window dated in the future moves: to the one of now.
                let start_us = if start_us > now { self.start_at(now) } else { start_us };
                [used, start_us, 0]
            }
            _ => [0, self.start_at(now), 0],
        }
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        matches!(*state, State::Window { used, start_us } if used > 0 && start_us > now)
    }

    fn afford(&self, [used, ..]: Seen, n: u64, cost: u64, _: u64, _: Option<u64>) -> u64 {
        n.min(self.limit.saturating_sub(used) / cost)
    }

    fn charge(&self, state: &mut State, seen: Seen, units: u64, now: u64) {
        let [used, start_us, _] = self.after(seen, units, now);
        *state = State::Window { used, start_us };
    }

    fn give_back(&self, state: &mut State, units: u64, stamp: u64, now: u64) -> bool {
        let [used, start_us, _] = self.settle(state, now);
        let counts = stamp >= start_us;
        if counts {
            *state = State::Window { used: used.saturating_sub(units), start_us };
        }
        counts
    }

    fn after(&self, [used, start_us, _]: Seen, units: u64, _: u64) -> Seen {
        [used.saturating_add(units).min(MOST_UNITS), start_us, 0]
    }

    fn remaining(&self, [used, ..]: Seen, _: u64) -> u64 {
        self.limit.saturating_sub(used)
    }

    fn retry_after(&self, seen: Seen, cost: u64, _: Option<u64>, now: u64) -> u64 {
        if seen[0] + cost > self.limit { self.reset_after(seen, now) } else { 0 }
    }

    fn reset_after(&self, [used, start_us, _]: Seen, now: u64) -> u64 {
        if used > 0 { start_us + self.window_us - now } else { 0 }
    }
}

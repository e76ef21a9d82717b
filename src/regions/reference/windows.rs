//! Counts by the names of windows.

use crate::quota::Quota;
use crate::quota::algorithm::Kind;

/// The maximum count, so that debt stays exact in a double.
const MAX_UNITS: i64 = 1 << 52;

/// The counts of three windows in a row. A window is named by its start on the clock, so regions whose clocks differ
/// charge the same window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// The start of the current window, in µs since 1970: its name.
    pub start_us: u64,
    /// The counts of the previous, the current and the next window. Escrow counts can be negative.
    pub counts: [i64; 3],
}

/// The windows of a quota on the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    length_us: u64,
    offset_us: u64,
    /// Windows begin with a multiple of this, as in the core.
    step_us: u64,
}

impl Grid {
    /// Returns the windows of a quota; `None` if it has none that all regions can name.
    pub(super) fn of(quota: &Quota) -> Option<Self> {
        match *quota.kind() {
            Kind::FixedWindow(fixed) => fixed.aligned_us.map(|offset_us| Self {
                length_us: fixed.window_us,
                offset_us,
                step_us: 1_000,
            }),
            Kind::SlidingCounter(counter) => {
                Some(Self { length_us: counter.window_us, offset_us: 0, step_us: 1 })
            }
            _ => None,
        }
    }

    pub(super) fn start(&self, now: u64) -> u64 {
        let now = now - now % self.step_us;
        now - (now + self.length_us - self.offset_us) % self.length_us
    }

    /// Returns the first instant of the window that is `ahead` windows after the one that begins at `start_us`.
    pub(super) fn begins(&self, start_us: u64, ahead: u64) -> u64 {
        (start_us + ahead * self.length_us).next_multiple_of(self.step_us)
    }

    /// Returns the name of the window before.
    pub(super) fn before(&self, start_us: u64) -> u64 {
        start_us - self.length_us
    }

    /// Returns the name of the window after.
    pub(super) fn after(&self, start_us: u64) -> u64 {
        start_us + self.length_us
    }
}

/// The place of a named window in [`Windows::counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Previous,
    Current,
    /// The next window. `is_far`: a later one, which counts as the next.
    Next {
        is_far: bool,
    },
    /// Older than the previous window.
    Gone,
}

/// How [`Windows::enter`] moved the windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    /// The instant at which to count: `now`, or the start of the current window if that is later.
    pub now: u64,
    /// The clock was stepped back by more than a window, and the current counts are now those of an earlier one.
    pub is_redated: bool,
}

impl Windows {
    /// Charges the current window.
    pub(super) fn add(&mut self, units: u64) {
        self.counts[1] = (self.counts[1] + units as i64).min(MAX_UNITS);
    }

    /// Moves on to the window of `now`. `pass` gets the units of each window that ends, and for how many equal ones in a
    /// row.
    ///
    /// A clock that is behind by up to a window keeps counting in the window that has begun, so its name never charges
    /// an earlier window again. After a larger step back, the counts move to the window of `now`, as in the core:
    /// otherwise the key would wait for the clock.
    pub(super) fn enter(&mut self, grid: Grid, now: u64, mut pass: impl FnMut(i64, u64)) -> Entered {
        let start = grid.start(now);
        let is_redated = start + grid.length_us < self.start_us;
        if is_redated {
            self.counts[2] = 0;
        }
        if is_redated || self.start_us < start {
            let passed = start.saturating_sub(self.start_us) / grid.length_us;
            for _ in 0..passed.min(2) {
                pass(self.counts[1], 1);
                self.counts = [self.counts[1], self.counts[2], 0];
            }
            if passed > 2 {
                pass(0, passed - 2);
                self.counts = [0; 3];
            }
            self.start_us = start;
        }
        Entered { now: now.max(grid.begins(self.start_us, 0)), is_redated }
    }

    /// Makes the window that contains `at_us` count at least `units`, if it is the previous or the current one.
    pub(super) fn raise(&mut self, grid: Grid, at_us: u64, units: u64) {
        let index = match self.place(grid, grid.start(at_us)) {
            Place::Previous => 0,
            Place::Current => 1,
            _ => return,
        };
        self.counts[index] = self.counts[index].max(units as i64);
    }

    pub(super) fn place(&self, grid: Grid, name_us: u64) -> Place {
        match name_us {
            name if name == self.start_us => Place::Current,
            name if name > self.start_us => Place::Next { is_far: name > self.start_us + grid.length_us },
            name if name + grid.length_us == self.start_us => Place::Previous,
            _ => Place::Gone,
        }
    }

    /// Returns when the last of these counts can no longer matter: a window after its own, since late charges name it.
    pub(super) fn kept_until(&self, grid: Grid) -> u64 {
        let last = self.counts.iter().rposition(|count| *count != 0);
        last.map_or(0, |index| grid.begins(self.start_us, index as u64 + 1))
    }
}

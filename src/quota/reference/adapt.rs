//! The adaptive limit of one key: `lua/in_flight/adapt.lua`.
//!
//! The limit follows the latency of the operations. Processes [report](Adaptation::report) how many operations
//! ended, and for how long how many were in flight. After each window, the first report changes the limit: it
//! grows while it is used and the latency is near the baseline, and shrinks when the latency rises.
//!
//! - **Latency**: by Little's law, the time in flight of all operations divided by the number that ended. It
//!   rises as soon as operations queue, before the slow ones have ended.
//! - **Baseline**: the latency without a queue. It falls to a lower latency. It rises only by a *probe*, which
//!   halves the limit for one window, and again as long as the latency falls. So no overload above the lower
//!   bound becomes the baseline, however long it lasts.
//!
//! All numbers are doubles, in Lua and here, with the same operations in the same order. Both agree to the bit.
//!
//! ```
//! use tidegate::reference::adapt::{Adaptation, Bounds, Report};
//!
//! let bounds = Bounds { min: 8, max: 400, tolerance: 1.5 };
//! let start = 1_767_225_600_000_000; // 2026-01-01 00:00 UTC
//! let mut adaptation = Adaptation::new(&bounds, start);
//! // 8 operations of 20 ms each were in flight all the time.
//! let report = Report { operations: 400, busy_us: 8_000_000, peak: 8, ..Report::default() };
//! adaptation.report(&report, &bounds, start + 1_125_000);
//! assert_eq!(adaptation.limit(&bounds), 14);
//! ```

/// The shortest window, in µs.
pub const WINDOW_US: f64 = 1_000_000.0;
/// A window lasts at least this many times the duration, so that most of its operations have begun in it.
const DURATIONS: f64 = 2.0;
/// A window need not be longer than this many times the latency: one operation that hung must not hold it open.
const LATENCIES: f64 = 64.0;
/// At the end of a window, all processes report within this part of it. Then the limit changes.
const REPORTING: f64 = 0.125;
/// A window lasts until this number of operations has ended.
const MIN_OPERATIONS: f64 = 50.0;
/// The limit grows only if at least this part of it was in flight at some time in the window.
const USED: f64 = 0.8;
/// The part of the operations from which on marks of overload count.
const OVERLOADED: f64 = 0.01;
/// The number of windows between two probes is this, plus 0 to 24 by the clock.
const WINDOWS_PER_PROBE: f64 = 48.0;
/// Without this rise of the latency, a probe has nothing to find out.
const RISEN: f64 = 1.25;
/// In a probe, the latency falls or differs if it does so by more than a tenth.
const FALLEN: f64 = 0.9;
const CONFIRMED: f64 = 1.1;
/// A level of a probe is at most this part of the level before. Otherwise its latency tells nothing.
const DEEPER: f64 = 0.7;
/// An unused key expires after this time, in µs, or after this number of windows, at most a year.
const KEPT_US: f64 = 600_000_000.0;
const KEPT_WINDOWS: f64 = 8.0;
const YEAR_US: f64 = 31_536_000_000_000.0;

/// The numbers between which a limit adapts, and how much the latency may rise. Those of the process that
/// reports apply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The lowest limit: at least 1.
    pub min: u64,
    /// The highest limit: at least `min`.
    pub max: u64,
    /// The latency that the limit aims at, as a multiple of the baseline.
    pub tolerance: f64,
}

/// The observations of one process since its last report. An operation that holds several units counts as that many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// The operations that ended, without those marked as overloaded.
    pub operations: u64,
    /// The sum of the times in flight of all operations since the last report, in µs, also of those that have
    /// not ended, and without those marked as overloaded.
    pub busy_us: u64,
    /// The operations that ended and were marked as overloaded.
    pub overloads: u64,
    /// The most units that all processes wanted to hold at one time.
    pub peak: u64,
    /// The sum of the times in flight of the `operations`, in ms.
    pub ended_ms: f64,
    /// The sum of their squares, in ms².
    pub squares: f64,
}

/// The reply to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// After how many µs it reports again.
    pub wait_us: u64,
    /// When the key expires, in µs since 1970.
    pub expires_us: u64,
}

impl Adaptation {
    /// Returns the state of an unused key at `now`, in µs since 1970.
    #[must_use]
    pub fn new(bounds: &Bounds, now: u64) -> Self {
        let limit = bounds.min as f64;
        Self {
            limit,
            baseline_us: 0.0,
            started_us: now as f64,
            operations: 0.0,
            busy_us: 0.0,
            overloads: 0.0,
            peak: 0.0,
            ended_ms: 0.0,
            squares: 0.0,
            resume: 0.0,
            lowest_us: 0.0,
            highest: limit,
            ceiling: 0.0,
            windows: WINDOWS_PER_PROBE,
        }
    }

    /// Returns the current limit, in units.
    #[must_use]
    pub fn limit(&self, bounds: &Bounds) -> u64 {
        within(bounds, self.limit).floor() as u64
    }

    /// Adds a report at `now`, in µs since 1970, and ends the window if it is over.
    pub fn report(&mut self, report: &Report, bounds: &Bounds, now: u64) -> Reported {
        let now = now as f64;
        self.operations += report.operations as f64;
        self.busy_us += report.busy_us as f64;
        self.overloads += report.overloads as f64;
        self.peak = self.peak.max(report.peak as f64);
        self.ended_ms += report.ended_ms;
        self.squares += report.squares;
        if self.started_us > now {
            self.started_us = now;
        }
        // Weighted by the time in flight: long operations fill the limit, also if most are short.
        let duration_us = if self.ended_ms > 0.0 { self.squares / self.ended_ms * 1_000.0 } else { 0.0 };
        let longest_us = LATENCIES * self.latency_us();
        let window_us = WINDOW_US.max((DURATIONS * duration_us).min(longest_us));
        let kept_us = KEPT_US.max((KEPT_WINDOWS * window_us).min(YEAR_US));
        Reported {
            wait_us: self.advance(bounds, window_us, now).ceil() as u64,
            expires_us: (now + kept_us).ceil() as u64,
        }
    }

    /// Ends the window if it is over. Returns the time until the next report.
    fn advance(&mut self, bounds: &Bounds, window_us: f64, now: f64) -> f64 {
        let reported_us = window_us + window_us * REPORTING;
        let age_us = now - self.started_us;
        if age_us < window_us {
            return (window_us - age_us).min(WINDOW_US);
        }
        if age_us < reported_us {
            return (reported_us - age_us).min(WINDOW_US);
        }
        if self.operations + self.overloads < MIN_OPERATIONS {
            return WINDOW_US;
        }
        self.end_window(bounds, age_us, now);
        self.started_us = now;
        self.operations = 0.0;
        self.busy_us = 0.0;
        self.overloads = 0.0;
        self.peak = 0.0;
        self.ended_ms = 0.0;
        self.squares = 0.0;
        WINDOW_US
    }

    /// Returns the latency in the window in µs; 0 if it is unknown.
    fn latency_us(&self) -> f64 {
        if self.operations > 0.0 { self.busy_us / self.operations } else { 0.0 }
    }

    fn end_window(&mut self, bounds: &Bounds, age_us: f64, now: f64) {
        let latency_us = self.latency_us();
        if self.resume > 0.0 {
            return self.end_level(bounds, latency_us, now);
        }
        let mut next = self.limit;
        if latency_us > 0.0 {
            if self.baseline_us == 0.0 {
                self.baseline_us = latency_us;
            } else if latency_us < self.baseline_us {
                // Half of the way: one window may be low by chance.
                self.baseline_us += (latency_us - self.baseline_us) / 2.0;
            }
            // The square root is room for operations that arrive unevenly.
            next = (bounds.tolerance * self.limit + self.limit.sqrt()) * self.baseline_us / latency_us;
        }
        let is_overloaded = self.overloads >= OVERLOADED * (self.operations + self.overloads);
        if is_overloaded {
            // The operations in flight that the service has accepted.
            let mean = self.busy_us / age_us;
            next = next.min(0.95 * mean.min(self.limit));
        }
        next = next.max(self.limit / 2.0).min(self.limit * 2.0);
        if is_overloaded {
            self.ceiling = next;
        } else if self.limit > 2.0 * self.ceiling {
            self.ceiling = 0.0;
        } else {
            next = next.min(self.ceiling.max(self.limit + self.limit.sqrt() / 2.0));
        }
        if next > self.limit && self.peak < USED * self.limit.floor() {
            next = self.limit;
        }
        self.limit = within(bounds, next);
        self.highest = self.highest.max(self.limit);
        self.windows = (self.windows - 1.0).max(0.0);
        let has_risen = latency_us > RISEN * self.baseline_us;
        // A probe is due, or the limit is so low that the service may have changed.
        if has_risen && (self.windows == 0.0 || self.limit <= self.highest / 2.0) {
            self.begin_probe(bounds, latency_us);
        }
    }

    /// Halves the units in flight, unless the lower bound is too near.
    fn begin_probe(&mut self, bounds: &Bounds, latency_us: f64) {
        let used = self.limit.min(self.peak);
        let level = within(bounds, used / 2.0);
        if level <= DEEPER * used {
            self.resume = self.limit;
            self.lowest_us = latency_us;
            self.limit = level;
        }
    }

    /// Ends a window of a probe: halves the limit again, or ends the probe.
    fn end_level(&mut self, bounds: &Bounds, latency_us: f64, now: f64) {
        let mut has_fallen = false;
        if latency_us > 0.0 {
            let is_confirmed =
                latency_us > FALLEN * self.baseline_us && latency_us < CONFIRMED * self.baseline_us;
            has_fallen = latency_us < FALLEN * self.lowest_us && !is_confirmed;
            self.lowest_us = self.lowest_us.min(latency_us);
        }
        let level = within(bounds, self.limit / 2.0);
        if has_fallen && level <= DEEPER * self.limit {
            self.limit = level;
            return;
        }
        // Where the latency still falls at the lower bound, it is that of a queue.
        if !has_fallen || self.lowest_us < self.baseline_us {
            self.baseline_us = self.lowest_us;
        }
        self.limit = within(bounds, self.resume);
        self.resume = 0.0;
        self.highest = self.limit;
        self.windows = WINDOWS_PER_PROBE + now % 25.0;
    }
}

/// Returns the nearest limit within the bounds.
fn within(bounds: &Bounds, limit: f64) -> f64 {
    limit.max(bounds.min as f64).min(bounds.max as f64)
}

// The state of an adaptive limit, as the script stores and replies it.

/// The names of the fields, as in Redis and in [`Adaptation::numbers`].
pub const FIELDS: [&str; 14] = [
    "limit",
    "baseline_us",
    "started_us",
    "operations",
    "busy_us",
    "overloads",
    "peak",
    "ended_ms",
    "squares",
    "resume",
    "lowest_us",
    "highest",
    "ceiling",
    "windows",
];

/// The adaptive limit of one key, and the observations of its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptation {
    /// The limit, with its fraction.
    pub limit: f64,
    /// The latency without a queue, in µs; 0 before the first window ends.
    pub baseline_us: f64,
    /// When the window began, in µs since 1970.
    pub started_us: f64,
    /// The operations of the window.
    pub operations: f64,
    /// Their time in flight, in µs.
    pub busy_us: f64,
    /// The operations that were marked as overloaded.
    pub overloads: f64,
    /// The most units of the window that were wanted at one time.
    pub peak: f64,
    /// The times in flight of the operations, in ms, and their squares.
    pub ended_ms: f64,
    /// The squares of these times, in ms².
    pub squares: f64,
    /// The limit to return to after a probe; 0 without a probe.
    pub resume: f64,
    /// The lowest latency of the probe so far, in µs.
    pub lowest_us: f64,
    /// The highest limit since the last probe.
    pub highest: f64,
    /// The limit at the last overload, above which the limit grows slowly; 0 without one.
    pub ceiling: f64,
    /// The number of windows until the next probe.
    pub windows: f64,
}

impl Adaptation {
    /// Returns the numbers of the fields, in the order of [`FIELDS`].
    #[must_use]
    pub const fn numbers(&self) -> [f64; FIELDS.len()] {
        [
            self.limit,
            self.baseline_us,
            self.started_us,
            self.operations,
            self.busy_us,
            self.overloads,
            self.peak,
            self.ended_ms,
            self.squares,
            self.resume,
            self.lowest_us,
            self.highest,
            self.ceiling,
            self.windows,
        ]
    }

    /// Returns the state with these [numbers](Self::numbers).
    #[must_use]
    pub const fn of_numbers(numbers: [f64; FIELDS.len()]) -> Self {
        let [limit, baseline_us, started_us, operations, busy_us, overloads, peak, ..] = numbers;
        let [.., ended_ms, squares, resume, lowest_us, highest, ceiling, windows] = numbers;
        Self {
            limit,
            baseline_us,
            started_us,
            operations,
            busy_us,
            overloads,
            peak,
            ended_ms,
            squares,
            resume,
            lowest_us,
            highest,
            ceiling,
            windows,
        }
    }
}

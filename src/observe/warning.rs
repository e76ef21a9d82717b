//! Warnings: mistakes in the setup of a process that no single decision shows.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use crate::observe::observer::{Event, EventSink};
use crate::runtime::clock::Clock;

/// The event after warnings about Redis.
pub(crate) const RECOVERED: &str = "Redis decides checks again: limits are shared";

/// The codes of the limiter's own warnings. Other crates have more.
#[cfg(feature = "metrics")]
pub(crate) const CODES: [&str; 10] = [
    "figures-rejected",
    "gate-redefined",
    "heartbeat-rejected",
    "heartbeat-unanswered",
    "overrides-left-out",
    "overrides-unreadable",
    "peer-plaintext",
    "permits-unrenewed",
    "redis-refused",
    "redis-unreachable",
];

/// The minimum time between two reports.
const PAUSE_US: u64 = 1_000_000;

/// A mistake in the setup of this process, which decisions alone do not show: requests without the address of
/// their peer, for example. Reported to [`Event::Warned`].
///
/// Displays as its message with its code: `no request has a peer address: … [peer-address-missing]`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    code: &'static str,
    message: String,
    occurrences: u64,
}

impl Warning {
    /// Returns the code: stable, for alerts. `docs/operate/runbook.md#warnings` has an entry for each.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// Returns the mistake and its fix. Never contains a key or a password.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns how often it occurred since the previous report of this code.
    #[must_use]
    pub const fn occurrences(&self) -> u64 {
        self.occurrences
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.message, self.code)?;
        match self.occurrences {
            1 => Ok(()),
            times => write!(f, " ({times} times since the last report)"),
        }
    }
}

/// Limits the reports of one warning: the first occurrence is reported at once, later ones at most once a
/// second together with their number. Pass it to [`Limiter::warn`](crate::Limiter::warn).
#[derive(Debug)]
pub struct RepeatedWarning {
    code: &'static str,
    pace: Pace,
}

impl RepeatedWarning {
    /// Returns a warning that has not occurred yet. `code` is its stable name, such as
    /// `peer-address-missing`.
    #[must_use]
    pub const fn new(code: &'static str) -> Self {
        Self { code, pace: Pace::new() }
    }

    /// Counts an occurrence for the next report.
    pub(crate) fn count(&self) {
        self.pace.count();
    }

    /// Lets the next occurrence be reported at once.
    pub(crate) fn make_due(&self) {
        self.pace.next_us.store(0, Ordering::Relaxed);
    }

    /// Counts an occurrence. Returns the warning if a report is due.
    fn occur(&self, now_us: u64, message: impl FnOnce() -> String) -> Option<Warning> {
        let occurrences = self.pace.occur(now_us)?;
        Some(Warning { code: self.code, message: message(), occurrences })
    }
}

/// Limits reports of one kind to one a second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The earliest time of the next report.
    next_us: AtomicU64,
    unreported: AtomicU64,
}

impl Pace {
    const fn new() -> Self {
        Self { next_us: AtomicU64::new(0), unreported: AtomicU64::new(0) }
    }

    fn count(&self) {
        self.unreported.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an occurrence. If a report is due, returns the number of occurrences since the last one.
    pub(super) fn occur(&self, now_us: u64) -> Option<u64> {
        let next_us = self.next_us.load(Ordering::Relaxed);
        self.count();
        let is_due = now_us >= next_us
            && self
                .next_us
                .compare_exchange(next_us, now_us + PAUSE_US, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        is_due.then(|| self.unreported.swap(0, Ordering::Relaxed))
    }
}

/// The destination of a limiter's warnings: its observer, or standard error.
#[derive(Clone)]
pub(crate) struct WarningSink {
    events: EventSink,
    /// Whether to write to standard error what no observer reports.
    to_stderr: bool,
    clock: Clock,
}

impl WarningSink {
    pub(crate) const fn new(events: EventSink, to_stderr: bool, clock: Clock) -> Self {
        Self { events, to_stderr, clock }
    }

    /// Returns the time by the limiter's clock.
    pub(crate) fn now_us(&self) -> u64 {
        self.clock.local_us()
    }

    /// Counts an occurrence, and reports it unless the previous report is less than a second old.
    pub(crate) fn warn(&self, warning: &RepeatedWarning, message: impl FnOnce() -> String) {
        if let Some(warning) = warning.occur(self.now_us(), message) {
            self.report(&Event::Warned(&warning), &warning);
        }
    }

    /// Reports that Redis decides again.
    pub(crate) fn recovered(&self) {
        self.report(&Event::Recovered, &RECOVERED);
    }

    /// Writes the line to standard error if no person can read the event otherwise.
    pub(crate) fn report(&self, event: &Event<'_>, line: &dyn fmt::Display) {
        self.events.notify(event);
        if self.to_stderr && !self.events.reports_warnings() {
            // A closed standard error must not fail a check.
            let _ = writeln!(io::stderr(), "tidegate: {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_occurrence_is_reported_at_once_and_later_ones_once_a_second() {
        let warning = RepeatedWarning::new("code");
        let reported =
            |now_us| warning.occur(now_us, || "message".to_owned()).map(|warning| warning.to_string());
        assert_eq!(reported(5).unwrap(), "message [code]");
        assert_eq!((reported(6), reported(PAUSE_US + 4)), (None, None));
        assert_eq!(reported(PAUSE_US + 5).unwrap(), "message [code] (3 times since the last report)");
        assert_eq!(reported(PAUSE_US + 6), None);
    }
}

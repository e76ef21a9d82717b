//! Warnings: mistakes in the setup of a process that no single decision shows.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;
use crate::observer::Observer;
use crate::trace;

/// The minimum time between two reports of one warning.
const PAUSE_US: u64 = 1_000_000;

/// A mistake in the setup of this process, which decisions alone do not show: requests without the address of
/// their peer, for example. Reported to [`Observer::warned`].
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
    /// Returns the code: stable, for alerts. `docs/operate/troubleshooting.md` has an entry for each.
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
    /// The earliest time of the next report, by the limiter's clock.
    next_us: AtomicU64,
    unreported: AtomicU64,
}

impl RepeatedWarning {
    /// Returns a warning that has not occurred yet. `code` is its stable name, such as
    /// `peer-address-missing`.
    #[must_use]
    pub const fn new(code: &'static str) -> Self {
        Self { code, next_us: AtomicU64::new(0), unreported: AtomicU64::new(0) }
    }

    /// Counts an occurrence. Returns the number to report, if a report is due.
    fn occur(&self, now_us: u64) -> Option<u64> {
        let next_us = self.next_us.load(Ordering::Relaxed);
        self.unreported.fetch_add(1, Ordering::Relaxed);
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
pub(crate) struct Warnings {
    observer: Option<Arc<dyn Observer>>,
    /// Whether to write to standard error if no `tracing` subscriber is set.
    to_stderr: bool,
    clock: Clock,
}

impl Warnings {
    pub(crate) const fn new(observer: Option<Arc<dyn Observer>>, to_stderr: bool, clock: Clock) -> Self {
        Self { observer, to_stderr, clock }
    }

    /// Counts an occurrence, and reports it unless the previous report is less than a second old.
    pub(crate) fn warn(&self, warning: &RepeatedWarning, message: impl FnOnce() -> String) {
        let Some(occurrences) = warning.occur(self.clock.local_us()) else {
            return;
        };
        let warning = Warning { code: warning.code, message: message(), occurrences };
        if let Some(observer) = &self.observer {
            observer.warned(&warning);
        }
        if self.to_stderr && !trace::has_subscriber() {
            // A closed standard error must not fail a check.
            let _ = writeln!(io::stderr(), "tidegate: {warning}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_occurrence_is_reported_at_once_and_later_ones_once_a_second() {
        let warning = RepeatedWarning::new("code");
        assert_eq!(warning.occur(5), Some(1));
        assert_eq!(warning.occur(6), None);
        assert_eq!(warning.occur(PAUSE_US + 4), None);
        assert_eq!(warning.occur(PAUSE_US + 5), Some(3));
        assert_eq!(warning.occur(PAUSE_US + 6), None);
    }
}

//! The destination of a limiter's warnings.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use crate::observe::observer::Observer;
use crate::observe::warning::{RECOVERED, RepeatedWarning};
use crate::runtime::clock::Clock;

/// The destination of a limiter's warnings: its observer, or standard error.
#[derive(Clone)]
pub(crate) struct WarningSink {
    observer: Option<Arc<dyn Observer>>,
    /// Whether to write to standard error what no observer reports.
    to_stderr: bool,
    clock: Clock,
}

impl WarningSink {
    pub(crate) const fn new(observer: Option<Arc<dyn Observer>>, to_stderr: bool, clock: Clock) -> Self {
        Self { observer, to_stderr, clock }
    }

    /// Returns the time by the limiter's clock.
    pub(crate) fn now_us(&self) -> u64 {
        self.clock.local_us()
    }

    /// Counts an occurrence, and reports it unless the previous report is less than a second old.
    pub(crate) fn warn(&self, warning: &RepeatedWarning, message: impl FnOnce() -> String) {
        let Some(warning) = warning.occur(self.now_us(), message) else {
            return;
        };
        let is_reported = self.observer.as_ref().is_some_and(|observer| observer.warned(&warning));
        self.write_unless(is_reported, &warning);
    }

    /// Reports that Redis decides again.
    pub(crate) fn recovered(&self) {
        let is_reported = self.observer.as_ref().is_some_and(|observer| observer.recovered());
        self.write_unless(is_reported, &RECOVERED);
    }

    fn write_unless(&self, is_reported: bool, line: &dyn fmt::Display) {
        if self.to_stderr && !is_reported {
            // A closed standard error must not fail a check.
            let _ = writeln!(io::stderr(), "tidegate: {line}");
        }
    }
}

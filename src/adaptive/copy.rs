//! The copy of an adaptive limit, and the observations of this process since its last report. Plain arithmetic: the
//! caller passes the time.

use crate::reference::adapt::{Adaptation, Bounds, Report, WINDOW_US};
use crate::store::Adapted;

#[derive(Debug)]
pub(super) struct LimitCopy {
    /// Those of the newest caller.
    pub(super) bounds: Bounds,
    known: Option<Known>,
    report: Report,
    in_flight: u64,
    /// Until when the time in flight is added up, by the local clock.
    counted_at_us: u64,
    /// When this process reports again, by the local clock.
    report_at_us: u64,
}

/// The state as the store replied it last, and as this process changes it while the store does not answer.
#[derive(Clone, Copy, Debug)]
struct Known {
    adaptation: Adaptation,
    /// The store's clock, and the local clock at that time.
    store_us: u64,
    local_us: u64,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The service has done it.
    Served,
    /// The service rejected it.
    Overloaded,
    /// Its time says nothing.
    Disregarded,
}

impl LimitCopy {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            known: None,
            report: Report::default(),
            in_flight: 0,
            counted_at_us: 0,
            report_at_us: 0,
        }
    }

    /// Returns the limit; `None` before the first reply.
    pub(super) fn limit(&self) -> Option<u64> {
        self.known.map(|known| known.adaptation.limit(&self.bounds))
    }

    pub(super) fn begin(&mut self, now_us: u64) {
        self.count(now_us);
        self.in_flight += 1;
    }

    /// Counts the end of an operation that took `took_us`.
    pub(super) fn end(&mut self, ended: Ended, took_us: u64, now_us: u64) {
        self.count(now_us);
        self.in_flight = self.in_flight.saturating_sub(1);
        if ended != Ended::Served {
            // Its time is no time of the service. A part of it may have been reported before.
            self.report.busy_us = self.report.busy_us.saturating_sub(took_us);
        }
        match ended {
            Ended::Served => {
                let took_ms = took_us as f64 / 1_000.0;
                self.report.operations += 1;
                self.report.ended_ms += took_ms;
                self.report.squares += took_ms * took_ms;
            }
            Ended::Overloaded => self.report.overloads += 1,
            Ended::Disregarded => {}
        }
    }

    /// Notes that all processes wanted to hold this number of units at one time.
    pub(super) fn wanted(&mut self, units: u64) {
        self.report.peak = self.report.peak.max(units);
    }

    fn count(&mut self, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.counted_at_us);
        self.report.busy_us = self.report.busy_us.saturating_add(self.in_flight.saturating_mul(elapsed_us));
        self.counted_at_us = now_us;
    }

    pub(super) const fn is_due(&self, now_us: u64) -> bool {
        self.report_at_us <= now_us
    }

    /// Returns the report to send. No other one is due until the reply.
    pub(super) fn take_report(&mut self, now_us: u64) -> (Report, Bounds) {
        self.count(now_us);
        self.report_at_us = u64::MAX;
        (std::mem::take(&mut self.report), self.bounds)
    }

    /// Takes the store's reply to a report.
    pub(super) fn replied(&mut self, adapted: &Adapted, now_us: u64) {
        self.known =
            Some(Known { adaptation: adapted.adaptation, store_us: adapted.now_us, local_us: now_us });
        self.report_at_us = now_us.saturating_add(adapted.wait_us);
    }

    /// Adapts the copy by this process's report alone, since the store did not answer it. Without the units of
    /// the other processes, the limit cannot grow.
    pub(super) fn not_replied(&mut self, report: &Report, now_us: u64) {
        let mut wait_us = WINDOW_US as u64;
        if let Some(known) = &mut self.known {
            let store_us = known.store_us.saturating_add(now_us.saturating_sub(known.local_us));
            let report = Report { peak: 0, ..*report };
            wait_us = known.adaptation.report(&report, &self.bounds, store_us).wait_us;
        }
        self.report_at_us = now_us.saturating_add(wait_us);
    }
}

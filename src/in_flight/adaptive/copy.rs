//! The copy of an adaptive limit, and the observations of this process since its last report. Plain arithmetic: the
//! caller passes the time.

use crate::quota::reference::adapt::{Adaptation, Bounds, Report, WINDOW_US};
use crate::store::Adapted;

#[derive(Debug)]
pub(super) struct LimitCopy {
    /// Those of the newest caller.
    pub(super) bounds: Bounds,
    known: Option<Known>,
    report: Report,
    /// The units of the operations in flight.
    in_flight: u64,
    /// Until when the time in flight is added up, by the local clock.
    counted_at_us: u64,
    /// When this process reported last, by the local clock.
    reported_at_us: u64,
    /// When this process reports again, by the local clock; `u64::MAX` until the reply to a report.
    report_at_us: u64,
}

/// A limit whose next report is overdue for longer than this, in µs, may have changed.
const OUTDATED_AFTER_US: u64 = 2 * WINDOW_US as u64;

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
            reported_at_us: 0,
            report_at_us: 0,
        }
    }

    /// Returns the limit; `None` before the first reply.
    pub(super) fn limit(&self) -> Option<u64> {
        self.known.map(|known| known.adaptation.limit(&self.bounds))
    }

    /// Returns whether the limit is that of the store, or as good as this process can know it.
    pub(super) fn is_current(&self, now_us: u64) -> bool {
        self.known.is_some() && now_us <= self.report_at_us.saturating_add(OUTDATED_AFTER_US)
    }

    /// Counts the beginning of an operation that holds these units: it counts as that many operations.
    pub(super) fn begin(&mut self, units: u64, now_us: u64) {
        self.count(now_us);
        self.in_flight = self.in_flight.saturating_add(units);
    }

    /// Counts the end of an operation that took `took_us`.
    pub(super) fn end(&mut self, ended: Ended, units: u64, took_us: u64, now_us: u64) {
        self.count(now_us);
        self.in_flight = self.in_flight.saturating_sub(units);
        if ended != Ended::Served {
            // Its time is no time of the service. The part before the last report cannot be taken back.
            let since_report_us = took_us.min(now_us.saturating_sub(self.reported_at_us));
            self.report.busy_us = self.report.busy_us.saturating_sub(units.saturating_mul(since_report_us));
        }
        match ended {
            Ended::Served => {
                let ended_ms = units as f64 * took_us as f64 / 1_000.0;
                self.report.operations = self.report.operations.saturating_add(units);
                self.report.ended_ms += ended_ms;
                self.report.squares += ended_ms * took_us as f64 / 1_000.0;
            }
            Ended::Overloaded => self.report.overloads = self.report.overloads.saturating_add(units),
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
        // A caller may have read the clock before another that was first here.
        self.counted_at_us = self.counted_at_us.max(now_us);
    }

    pub(super) const fn is_due(&self, now_us: u64) -> bool {
        self.report_at_us <= now_us
    }

    /// Returns the report to send. No other one is due until the reply.
    pub(super) fn take_report(&mut self, now_us: u64) -> (Report, Bounds) {
        self.count(now_us);
        (self.reported_at_us, self.report_at_us) = (now_us, u64::MAX);
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
            known.adaptation.peak = 0.0;
            wait_us = known.adaptation.report(&report, &self.bounds, store_us).wait_us;
        }
        self.report_at_us = now_us.saturating_add(wait_us);
    }

    /// Notes that the caller that reported is gone. If it was the first one, another reports at once.
    pub(super) fn abandoned(&mut self, report: &Report, now_us: u64) {
        match self.known {
            Some(_) => self.not_replied(report, now_us),
            None => self.report_at_us = now_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn copy() -> LimitCopy {
        LimitCopy::new(Bounds { min: 8, max: 400, tolerance: 1.5 })
    }

    fn reply(copy: &mut LimitCopy, now_us: u64) {
        let adaptation = Adaptation::new(&copy.bounds, now_us);
        copy.replied(&Adapted { adaptation, now_us, wait_us: SECOND_US }, now_us);
    }

    #[test]
    fn mark_of_a_long_operation_takes_back_no_time_of_others() {
        for ended in [Ended::Overloaded, Ended::Disregarded] {
            let mut copy = copy();
            copy.begin(1, 0);
            copy.take_report(30 * SECOND_US);
            copy.begin(2, 30 * SECOND_US);
            copy.end(ended, 1, 31 * SECOND_US, 31 * SECOND_US);
            copy.end(Ended::Served, 2, SECOND_US, 31 * SECOND_US);
            let (report, _) = copy.take_report(31 * SECOND_US);
            assert_eq!((report.operations, report.busy_us), (2, 2 * SECOND_US), "{ended:?}");
        }
    }

    #[test]
    fn operation_of_several_units_counts_as_that_many() {
        let (mut one, mut several) = (copy(), copy());
        one.begin(3, 0);
        one.end(Ended::Served, 3, 200_000, 200_000);
        for _ in 0..3 {
            several.begin(1, 0);
        }
        for _ in 0..3 {
            several.end(Ended::Served, 1, 200_000, 200_000);
        }
        assert_eq!(one.take_report(SECOND_US), several.take_report(SECOND_US));
    }

    #[test]
    fn limit_is_current_until_its_next_report_is_long_overdue() {
        let mut copy = copy();
        assert!(!copy.is_current(0));
        copy.take_report(0);
        reply(&mut copy, 0);
        assert!(copy.is_current(SECOND_US + OUTDATED_AFTER_US));
        assert!(!copy.is_current(SECOND_US + OUTDATED_AFTER_US + 1));
        copy.take_report(100 * SECOND_US);
        assert!(copy.is_current(100 * SECOND_US), "the reply is on its way");
    }

    #[test]
    fn first_report_whose_caller_is_gone_is_sent_again_at_once() {
        let mut copy = copy();
        let (report, _) = copy.take_report(7);
        copy.abandoned(&report, 7);
        assert!(copy.is_due(7));
        let (report, _) = copy.take_report(7);
        copy.not_replied(&report, 7);
        assert!(!copy.is_due(7), "the store did not answer");
    }

    #[test]
    fn caller_that_read_the_clock_earlier_counts_no_time_twice() {
        let mut copy = copy();
        copy.begin(1, 0);
        copy.begin(1, SECOND_US);
        copy.begin(1, SECOND_US / 2);
        let (report, _) = copy.take_report(SECOND_US);
        assert_eq!(report.busy_us, SECOND_US);
    }
}

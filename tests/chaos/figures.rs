//! The figures of one run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::support::load::{Checked, Fallback, Report};

use super::bounds::{Admitted, Class};
use super::scenario::Run;

#[derive(Debug)]
pub struct Figures {
    pub fault: &'static str,
    pub fallback: Fallback,
    /// Number of checks.
    pub checks: u64,
    /// Checks by source of the decision. Errors count as one source.
    pub by_source: BTreeMap<String, u64>,
    pub errors: BTreeMap<String, u64>,
    /// Latencies that the callers observed.
    pub observed: Latencies,
    /// Latencies without the time in which the process was not scheduled.
    pub corrected: Latencies,
    /// The longest time in which a process was not scheduled within one check, or a server at a time.
    pub worst_stall_us: u64,
    /// Units that Redis admitted.
    pub admitted: BTreeMap<Class, Admitted>,
    /// Units that processes admitted without Redis.
    pub by_fallback: Admitted,
    /// Time from the fault to the first check that Redis did not decide.
    pub first_failure_us: Option<u64>,
    /// Time from the repair to the first decision by Redis, in the process that waited longest.
    pub redis_again_us: Option<u64>,
    pub connections: Option<u64>,
    /// Memory growth from before the fault to the end, in the process that grew most.
    pub grown_kb: u64,
    /// Descriptions of the assertions that failed.
    pub violations: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Latencies {
    pub p999_us: u64,
    pub worst_us: u64,
}

impl Latencies {
    fn of(all: impl Iterator<Item = u64>) -> Self {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        let mut worst_us = 0;
        for latency_us in all {
            histogram.record(latency_us).unwrap();
            worst_us = worst_us.max(latency_us);
        }
        Self { p999_us: histogram.value_at_quantile(0.999), worst_us }
    }
}

impl Figures {
    pub fn of(run: &Run) -> Self {
        let all = || run.reports.iter().flat_map(|report| &report.checks);
        let (broken, repaired) = (run.ground.broken_us, run.ground.repaired_us);
        let (mut by_source, mut errors) = (BTreeMap::new(), BTreeMap::new());
        for check in all() {
            *by_source.entry(check.source.to_string()).or_default() += 1;
        }
        for (text, count) in run.reports.iter().flat_map(|report| &report.errors) {
            // Errors that differ only in the gate and key have the same reason.
            let reason = text.split_once(" bytes): ").map_or(&**text, |(_, reason)| reason);
            *errors.entry(reason.lines().next().unwrap_or_default().to_owned()).or_default() += count;
        }
        let failures = || all().filter(|check| check.is_failure());
        let again = |checks: &[Checked]| {
            let checks = checks.iter().filter(|check| check.is_redis() && check.returned_us >= repaired);
            checks.map(|check| check.returned_us - repaired).min()
        };
        let again: Option<Vec<u64>> = run.reports.iter().map(|report| again(&report.checks)).collect();
        let mut figures = Self {
            fault: run.fault.name,
            fallback: run.fallback,
            checks: all().count() as u64,
            by_source,
            errors,
            observed: Latencies::of(all().map(Checked::elapsed_us)),
            corrected: Latencies::of(all().map(Checked::latency_us)),
            worst_stall_us: all().map(|check| check.stalled_us).max().unwrap_or(0),
            admitted: BTreeMap::new(),
            by_fallback: Admitted::default(),
            first_failure_us: failures()
                .filter(|check| check.returned_us >= broken)
                .map(|check| check.returned_us - broken)
                .min(),
            redis_again_us: again.and_then(|again| again.into_iter().max()),
            connections: run.connections,
            grown_kb: run.reports.iter().map(Report::grown_kb).max().unwrap_or(0),
            violations: Vec::new(),
        };
        figures.check(run);
        figures
    }

    pub fn from(&self, source: &str) -> u64 {
        self.by_source.get(source).copied().unwrap_or(0)
    }
}

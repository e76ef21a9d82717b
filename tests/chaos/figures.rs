//! What a run comes to.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::support::load::{Asked, Fallback, Report};

use super::bounds::{Admitted, Class};
use super::scenario::Run;

#[derive(Debug)]
pub struct Figures {
    pub fault: &'static str,
    pub fallback: Fallback,
    pub asked: u64,
    /// By source; errors are one.
    pub by_source: BTreeMap<String, u64>,
    pub errors: BTreeMap<String, u64>,
    /// As callers saw it.
    pub seen: Latencies,
    /// Without what the process itself was not let run.
    pub corrected: Latencies,
    /// The most that any process was not let run within one ask, or a server at a time.
    pub worst_stall_us: u64,
    /// By Redis.
    pub admitted: BTreeMap<Class, Admitted>,
    /// By processes alone.
    pub alone: Admitted,
    /// From the fault to the first ask that Redis did not decide.
    pub first_failure_us: Option<u64>,
    /// From the repair to the first decision of Redis in the process that waited longest.
    pub redis_again_us: Option<u64>,
    pub connections: Option<u64>,
    /// The process that grew most, from before the fault to the end.
    pub grown_kb: u64,
    /// What must not be, in words.
    pub wrong: Vec<String>,
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
        let all = || run.reports.iter().flat_map(|report| &report.asked);
        let (broken, mended) = (run.ground.broken_us, run.ground.mended_us);
        let (mut by_source, mut errors) = (BTreeMap::new(), BTreeMap::new());
        for asked in all() {
            *by_source.entry(asked.source.to_string()).or_default() += 1;
        }
        for (text, count) in run.reports.iter().flat_map(|report| &report.errors) {
            // The gate differs, the reason is the same.
            let reason = text.split_once(" bytes): ").map_or(&**text, |(_, reason)| reason);
            *errors.entry(reason.lines().next().unwrap_or_default().to_owned()).or_default() += count;
        }
        let failures = || all().filter(|asked| asked.is_failure());
        let again = |asked: &[Asked]| {
            let asked = asked.iter().filter(|asked| asked.is_redis() && asked.returned_us >= mended);
            asked.map(|asked| asked.returned_us - mended).min()
        };
        let again: Option<Vec<u64>> = run.reports.iter().map(|report| again(&report.asked)).collect();
        let mut figures = Self {
            fault: run.fault.name,
            fallback: run.fallback,
            asked: all().count() as u64,
            by_source,
            errors,
            seen: Latencies::of(all().map(Asked::elapsed_us)),
            corrected: Latencies::of(all().map(Asked::latency_us)),
            worst_stall_us: all().map(|asked| asked.stalled_us).max().unwrap_or(0),
            admitted: BTreeMap::new(),
            alone: Admitted::default(),
            first_failure_us: failures()
                .filter(|asked| asked.returned_us >= broken)
                .map(|asked| asked.returned_us - broken)
                .min(),
            redis_again_us: again.and_then(|again| again.into_iter().max()),
            connections: run.connections,
            grown_kb: run.reports.iter().map(Report::grown_kb).max().unwrap_or(0),
            wrong: Vec::new(),
        };
        figures.check(run);
        figures
    }

    pub fn from(&self, source: &str) -> u64 {
        self.by_source.get(source).copied().unwrap_or(0)
    }
}

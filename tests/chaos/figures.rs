//! What a run comes to, and what it must not come to.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::support::load::Asked;

use super::bounds::{Admitted, by_redis, is_scarce, without_redis};
use super::scenario::{DEADLINE_MS, Run};

#[derive(Debug)]
pub struct Figures {
    pub fault: String,
    pub asked: usize,
    /// By source; errors are one.
    pub by_source: BTreeMap<String, usize>,
    pub errors: BTreeMap<String, u64>,
    pub worst_us: u64,
    pub p999_us: u64,
    /// The most that any process was not let run, within one ask.
    pub worst_stall_us: u64,
    pub hot: Admitted,
    pub scarce: Admitted,
    /// From the fault to the first ask that any process could not have decided.
    pub first_failure_us: Option<u64>,
    /// From the repair to the first decision of Redis in the process that waited longest.
    pub redis_again_us: Option<u64>,
    /// From the repair to the last failure.
    pub last_failure_us: Option<u64>,
    pub connections: u64,
    /// What must not be, in words.
    pub wrong: Vec<String>,
}

impl Figures {
    pub fn of(run: &Run) -> Self {
        let all = || run.reports.iter().flat_map(|report| &report.asked);
        let (broken, mended) = (run.ground.broken_us, run.ground.mended_us);
        let mut latencies = Histogram::<u64>::new(3).unwrap();
        let (mut by_source, mut errors) = (BTreeMap::new(), BTreeMap::new());
        for asked in all() {
            latencies.record(asked.latency_us()).unwrap();
            *by_source.entry(asked.source.clone()).or_default() += 1;
        }
        for (text, count) in run.reports.iter().flat_map(|report| &report.errors) {
            // The gate differs, the reason is the same.
            let reason = text.split_once(" bytes): ").map_or(&**text, |(_, reason)| reason);
            *errors.entry(reason.to_owned()).or_default() += count;
        }
        let failures = || all().filter(|asked| asked.is_failure());
        let again = |asked: &[Asked]| {
            let asked = asked.iter().filter(|asked| asked.is_redis() && asked.returned_us >= mended);
            asked.map(|asked| asked.returned_us - mended).min()
        };
        let again: Option<Vec<u64>> = run.reports.iter().map(|report| again(&report.asked)).collect();
        let mut figures = Self {
            fault: run.fault.name.to_owned(),
            asked: all().count(),
            by_source,
            errors,
            worst_us: all().map(Asked::latency_us).max().unwrap_or(0),
            p999_us: latencies.value_at_quantile(0.999),
            worst_stall_us: all().map(|asked| asked.stalled_us).max().unwrap_or(0),
            hot: Admitted::default(),
            scarce: Admitted::default(),
            first_failure_us: failures()
                .filter(|asked| asked.returned_us >= broken)
                .map(|asked| asked.returned_us - broken)
                .min(),
            redis_again_us: again.and_then(|again| again.into_iter().max()),
            last_failure_us: failures().filter_map(|asked| asked.returned_us.checked_sub(mended)).max(),
            connections: run.connections,
            wrong: Vec::new(),
        };
        figures.check_admitted(run);
        figures.check_times(run);
        figures.check_before(run);
        for left in run.reports.iter().map(|report| report.left) {
            figures.must(left.is_little(), || format!("left over: {left:?}"));
        }
        figures
    }

    fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    fn check_admitted(&mut self, run: &Run) {
        for (index, (name, quota, _)) in run.gates.iter().enumerate().filter(|(_, gate)| gate.0 != "plenty") {
            let all =
                || run.reports.iter().flat_map(|report| &report.asked).filter(|asked| asked.gate == index);
            let bound = by_redis(quota, all(), run.start_us, &run.ground);
            let Admitted { admitted, permitted } = bound;
            self.must(admitted <= permitted, || {
                format!("{name}: {admitted} admitted, {permitted} permitted")
            });
            self.must(admitted > 0, || format!("{name}: none admitted"));
            let sum = if is_scarce(name) { &mut self.scarce } else { &mut self.hot };
            sum.admitted += admitted;
            sum.permitted += permitted;
            if is_scarce(name) {
                let exact = quota.limit() * (1 + run.ground.losses);
                self.must(permitted == exact, || format!("{name}: {permitted} permitted, not {exact}"));
            }
            if let Some(most) = without_redis(run.fallback) {
                let more = all().filter(|asked| asked.is_failure() && asked.allowed).count() as u64;
                self.must(more <= most, || {
                    format!("{name}: {more} admitted without Redis, {most} permitted")
                });
            }
        }
    }

    fn check_times(&mut self, run: &Run) {
        const MS: u64 = 1_000;
        let deadline = DEADLINE_MS * MS;
        let (worst, p999) = (self.worst_us, self.p999_us);
        self.must(worst <= deadline + 250 * MS, || format!("an ask took {} ms", worst / MS));
        self.must(p999 <= deadline + 20 * MS, || format!("p99.9 is {} ms", p999 / MS));
        let stall = self.worst_stall_us;
        let most = u64::try_from(run.fault.again.as_micros()).unwrap() + stall;
        let again = self.redis_again_us;
        self.must(again.is_some_and(|time| time <= most), || {
            format!("Redis decides again after {again:?} us")
        });
        let late = |asked: &&Asked| asked.called_us > run.ground.mended_us + most;
        let late: Vec<&Asked> = run.reports.iter().flat_map(|report| &report.asked).filter(late).collect();
        let failed = late.iter().filter(|asked| asked.is_failure()).count();
        // On a machine with much else to do a deadline may pass.
        self.must(failed * 100 <= late.len(), || {
            format!("{failed} of {} asks failed more than {} ms after the repair", late.len(), most / MS)
        });
        if run.fault.fails {
            let first = self.first_failure_us;
            self.must(first.is_some(), || "nothing failed: was anything broken?".to_owned());
        }
    }

    /// What fails without a fault says nothing of it.
    fn check_before(&mut self, run: &Run) {
        let all = run.reports.iter().flat_map(|report| &report.asked);
        let early = all.filter(|asked| asked.is_failure() && asked.returned_us < run.ground.broken_us);
        let early = early.count();
        // On a machine with much else to do a deadline may pass.
        self.must(early * 100 <= self.asked, || format!("{early} asks failed before the fault"));
    }
}

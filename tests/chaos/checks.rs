//! Assertions that hold under every fault.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::load::{Checked, Fallback};
use crate::support::stalls::extended;

use super::bounds::{Admitted, Class, admitted_though_exhausted, by_fallback, by_redis};
use super::figures::Figures;
use super::scenario::{Charged, DEADLINE_MS, Run};

const MS: u64 = 1_000;
/// The longest time from the repair until Redis decides again.
const MAX_RECOVERY: Duration = Duration::from_secs(2);
/// A process that was descheduled for this long may have missed a deadline.
const LONG_STALL_US: u64 = 20 * MS;
/// A connection or a task that leaked on each repetition would take more.
const MAX_GROWN_KB: u64 = 8_000;

impl Figures {
    pub(super) fn check(&mut self, run: &Run) {
        self.check_admitted(run);
        self.check_charged(run);
        self.check_decisions(run);
        self.check_latencies();
        self.check_recovery(run);
        self.check_leaks(run);
    }

    /// Records a violation unless the condition holds.
    fn must(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(violation());
        }
    }

    fn check_admitted(&mut self, run: &Run) {
        for (index, gate) in run.gates.iter().enumerate().filter(|(_, gate)| gate.class != Class::Plenty) {
            let mut keys: BTreeMap<u64, Vec<Vec<&Checked>>> = BTreeMap::new();
            for (process, report) in run.reports.iter().enumerate() {
                for check in report.checks.iter().filter(|check| check.gate == index) {
                    let processes =
                        keys.entry(check.key).or_insert_with(|| vec![Vec::new(); run.reports.len()]);
                    processes[process].push(check);
                }
            }
            let mut of_gate = Admitted::default();
            for (key, processes) in keys {
                let name = format!("{} of {key}", gate.name);
                let all = processes.iter().flatten().copied();
                let redis = by_redis(&gate.quota, all, run.start_us, &run.ground);
                self.must(redis.is_within_bound(), || format!("{name}: {redis:?} by Redis"));
                if gate.class == Class::Scarce {
                    let exact = gate.quota.limit() * (1 + run.ground.losses);
                    let permitted = redis.permitted;
                    self.must(permitted == exact, || format!("{name}: {permitted} permitted, not {exact}"));
                }
                let mut fallback = Admitted::default();
                for checks in processes {
                    let exceeded = admitted_though_exhausted(&checks, run.ground.broken_us);
                    let may_be_free_again = gate.class != Class::Scarce || run.ground.losses > 0;
                    self.must(exceeded == 0 || may_be_free_again, || {
                        format!("{name}: {exceeded} admitted though exhausted")
                    });
                    let own = by_fallback(&gate.share, checks.into_iter(), run.start_us);
                    // Between two outages Redis may have reported free units, which a process may use again.
                    self.must(own.is_within_bound() || !run.fault.is_single_outage, || {
                        format!("{name}: {own:?} by one process")
                    });
                    fallback += own;
                }
                let mut both = redis;
                both += fallback;
                self.must(both.is_within_bound(), || {
                    format!("{name}: {redis:?} by Redis, {fallback:?} without")
                });
                self.by_fallback += fallback;
                of_gate += redis;
            }
            let admitted = of_gate.admitted;
            self.must(admitted > 0, || format!("{}: none admitted", gate.name));
            *self.admitted.entry(gate.class).or_default() += of_gate;
        }
    }

    fn check_charged(&mut self, run: &Run) {
        for Charged { gate, key, charged, min } in &run.charged {
            let name = &run.gates[*gate].name;
            self.must(charged >= min, || format!("{name} of {key}: {charged} charged of {min}"));
        }
    }

    fn check_decisions(&mut self, run: &Run) {
        let failed = self.from("error");
        self.must(run.fallback == Fallback::Error || failed == 0, || format!("{failed} checks failed"));
        let passed = run.reports.iter().flat_map(|report| &report.checks);
        let passed = passed.filter(|check| check.is_failure() && check.allowed).count();
        let may_pass = matches!(run.fallback, Fallback::Local | Fallback::Open);
        self.must(may_pass || passed == 0, || format!("the fallback admitted {passed} checks"));
        if run.fault.fails {
            let first = self.first_failure_us;
            self.must(first.is_some(), || "Redis decided all checks, so the fault had no effect".to_owned());
        }
    }

    fn check_latencies(&mut self) {
        let (worst, p999) = (self.corrected.worst_us, self.corrected.p999_us);
        self.must(worst <= (DEADLINE_MS + 250) * MS, || format!("a check took {} ms", worst / MS));
        self.must(p999 <= (DEADLINE_MS + 20) * MS, || format!("p99.9 is {} ms", p999 / MS));
    }

    /// Asserts that Redis decided all checks before the fault. After the repair it decides again in time, and
    /// then decides all checks. The run lasts long enough that there are such checks.
    fn check_recovery(&mut self, run: &Run) {
        let again = self.redis_again_us;
        let max = extended(MAX_RECOVERY, run.stalled[1].max(run.fleet_lost));
        let max_us = u64::try_from(max.as_micros()).unwrap();
        self.must(again.is_some_and(|time| time <= max_us), || {
            let health: Vec<&str> = run.reports.iter().map(|report| &*report.health).collect();
            format!("Redis decides again after {again:?} us; at the end: {health:#?}")
        });
        let all = || run.reports.iter().flat_map(|report| &report.checks);
        let early: Vec<&Checked> = all().filter(|check| check.returned_us < run.ground.broken_us).collect();
        let late: Vec<&Checked> =
            all().filter(|check| check.called_us > run.ground.repaired_us + max_us).collect();
        self.must(!late.is_empty(), || format!("no check was made later than {max_us} us after the repair"));
        for (when, checks, stalled) in
            [("before the fault", early, run.stalled[0]), ("after it", late, run.stalled[1])]
        {
            let failed = checks.iter().filter(|check| check.is_failure()).count();
            let own = checks.iter().map(|check| check.stalled_us).max().unwrap_or(0);
            let stalled_us = own.max(u64::try_from(stalled.as_micros()).unwrap());
            self.worst_stall_us = self.worst_stall_us.max(stalled_us);
            // Stalls this long let deadlines pass and may open the breaker.
            self.must(failed == 0 || stalled_us >= LONG_STALL_US, || {
                format!("Redis did not decide {failed} of {} checks {when}", checks.len())
            });
        }
    }

    fn check_leaks(&mut self, run: &Run) {
        for report in &run.reports {
            let is_little = report.is_little_left(run.ground.max_connections());
            self.must(is_little && report.grown_kb() <= MAX_GROWN_KB, || {
                format!("left over: {:?}, {:?}, then {:?}", report.first, report.before, report.after)
            });
        }
    }
}

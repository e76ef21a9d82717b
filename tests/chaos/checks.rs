//! What must not be, whatever the fault.

use std::collections::BTreeMap;

use crate::support::load::{Asked, Fallback};

use super::bounds::{Admitted, Class, by_itself, by_redis, of_what_is_gone};
use super::figures::Figures;
use super::scenario::{Charged, DEADLINE_MS, Run};

const MS: u64 = 1_000;
/// How long after the repair Redis may take to decide again.
const AGAIN_US: u64 = 2_000 * MS;
/// Who was not let run for so long may have missed a deadline by it.
const LONG_STALL_US: u64 = 20 * MS;
/// A connection or a task that is kept each time would take more.
const MOST_GROWN_KB: u64 = 8_000;

impl Figures {
    pub(super) fn check(&mut self, run: &Run) {
        self.check_admitted(run);
        self.check_charged(run);
        self.check_answers(run);
        self.check_latencies();
        self.check_return(run);
        self.check_left(run);
    }

    fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    fn check_admitted(&mut self, run: &Run) {
        for (index, gate) in run.gates.iter().enumerate().filter(|(_, gate)| gate.class != Class::Plenty) {
            let mut keys: BTreeMap<u64, Vec<Vec<&Asked>>> = BTreeMap::new();
            for (process, report) in run.reports.iter().enumerate() {
                for asked in report.asked.iter().filter(|asked| asked.gate == index) {
                    let processes =
                        keys.entry(asked.key).or_insert_with(|| vec![Vec::new(); run.reports.len()]);
                    processes[process].push(asked);
                }
            }
            let mut of_gate = Admitted::default();
            for (key, processes) in keys {
                let what = format!("{} of {key}", gate.name);
                let all = processes.iter().flatten().copied();
                let redis = by_redis(&gate.quota, all, run.start_us, &run.ground);
                self.must(redis.is_held(), || format!("{what}: {redis:?} by Redis"));
                if gate.class == Class::Scarce {
                    let exact = gate.quota.limit() * (1 + run.ground.losses);
                    let permitted = redis.permitted;
                    self.must(permitted == exact, || format!("{what}: {permitted} permitted, not {exact}"));
                }
                let mut alone = Admitted::default();
                for asked in processes {
                    let gone = of_what_is_gone(&asked, run.ground.broken_us);
                    let may_come_back = gate.class != Class::Scarce || run.ground.losses > 0;
                    self.must(gone == 0 || may_come_back, || format!("{what}: {gone} of what is gone"));
                    let own = by_itself(&gate.share, asked.into_iter(), run.start_us);
                    // Between one outage and the next Redis may have told of room that there is.
                    self.must(own.is_held() || !run.fault.is_one, || {
                        format!("{what}: {own:?} by one process")
                    });
                    alone += own;
                }
                let mut both = redis;
                both += alone;
                self.must(both.is_held(), || format!("{what}: {redis:?} by Redis, {alone:?} without"));
                self.alone += alone;
                of_gate += redis;
            }
            let admitted = of_gate.admitted;
            self.must(admitted > 0, || format!("{}: none admitted", gate.name));
            *self.admitted.entry(gate.class).or_default() += of_gate;
        }
    }

    fn check_charged(&mut self, run: &Run) {
        for Charged { gate, key, charged, least } in &run.charged {
            let name = &run.gates[*gate].name;
            self.must(charged >= least, || format!("{name} of {key}: {charged} charged of {least}"));
        }
    }

    fn check_answers(&mut self, run: &Run) {
        let failed = self.from("error");
        self.must(run.fallback == Fallback::Error || failed == 0, || format!("{failed} asks failed"));
        let passed = run.reports.iter().flat_map(|report| &report.asked);
        let passed = passed.filter(|asked| asked.is_failure() && asked.allowed).count();
        let may_pass = matches!(run.fallback, Fallback::Local | Fallback::Open);
        self.must(may_pass || passed == 0, || format!("{passed} passed that Redis did not decide"));
        if run.fault.fails {
            let first = self.first_failure_us;
            self.must(first.is_some(), || "Redis decided all: was anything broken?".to_owned());
        }
    }

    fn check_latencies(&mut self) {
        let (worst, p999) = (self.corrected.worst_us, self.corrected.p999_us);
        self.must(worst <= (DEADLINE_MS + 250) * MS, || format!("an ask took {} ms", worst / MS));
        self.must(p999 <= (DEADLINE_MS + 20) * MS, || format!("p99.9 is {} ms", p999 / MS));
    }

    /// Redis decides again in time, and from then on all; it decided all before the fault.
    fn check_return(&mut self, run: &Run) {
        let again = self.redis_again_us;
        let most = AGAIN_US + self.worst_stall_us;
        self.must(again.is_some_and(|time| time <= most), || {
            format!("Redis decides again after {again:?} us")
        });
        let all = || run.reports.iter().flat_map(|report| &report.asked);
        let early: Vec<&Asked> = all().filter(|asked| asked.returned_us < run.ground.broken_us).collect();
        let late: Vec<&Asked> = all().filter(|asked| asked.called_us > run.ground.mended_us + most).collect();
        for (when, asked, stalled) in
            [("before the fault", early, run.stalled[0]), ("after it", late, run.stalled[1])]
        {
            let failed = asked.iter().filter(|asked| asked.is_failure()).count();
            let own = asked.iter().map(|asked| asked.stalled_us).max().unwrap_or(0);
            let stalled_us = own.max(u64::try_from(stalled.as_micros()).unwrap());
            self.worst_stall_us = self.worst_stall_us.max(stalled_us);
            // Where some were not let run for so long, deadlines pass, and the breaker may open.
            self.must(failed == 0 || stalled_us >= LONG_STALL_US, || {
                format!("Redis did not decide {failed} of {} asks {when}", asked.len())
            });
        }
    }

    fn check_left(&mut self, run: &Run) {
        for report in &run.reports {
            let is_little = report.is_little_left(run.ground.most_connections());
            self.must(is_little && report.grown_kb() <= MOST_GROWN_KB, || {
                format!("left over: {:?}, {:?}, then {:?}", report.first, report.before, report.after)
            });
        }
    }
}

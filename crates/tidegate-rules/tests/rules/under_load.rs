//! Rule files change several times a second, by every method that writers use, while four processes check
//! requests with these rules.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::{Event, Limiter, Observer};
use tidegate_rules::{Descriptor, Loader, RulesLimiter};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::MissedTickBehavior;

use super::loading::Folder;
use crate::support::fixture::{PATIENCE, builder_as_is, namespace, soon};
use crate::support::instance::Instance;
use crate::support::load::{Holdings, now_us};
use crate::support::stalls::{LostTime, extended};

const PROCESSES: usize = 4;
const TASKS: usize = 2;
const JOB: &str = "TIDEGATE_TEST_RULES";
/// Maximum time until a written set of rules takes effect, provided that the files do not change again.
const LIVE: Duration = Duration::from_secs(1);
/// Enough rules that a partly written file is detectable.
const RULES: usize = 50;
/// Base of the limits; larger than the number of checks.
const BASE_LIMIT: u64 = 1_000_000_000;
/// Maximum growth of a process's memory from the middle of the run to its end, in KiB.
const MAX_GROWTH_KIB: u64 = 6 * 1024;

/// The limits of the two files of one set.
type Limits = (u64, u64);

/// Rule files in the layout in which Kubernetes mounts a ConfigMap.
struct ConfigMap {
    folder: Folder,
    version: u64,
    written: Vec<Write>,
}

/// One valid set of rules, with the times in µs at which its write began and ended.
struct Write {
    began: u64,
    ended: u64,
    limits: Limits,
}

/// The first observation of limits that became active.
#[derive(Serialize, Deserialize)]
struct Observation {
    at_us: u64,
    limits: Limits,
    /// The time for which the process could not run since the previous observation.
    lost_us: u64,
}

#[derive(Serialize, Deserialize)]
struct Report {
    checks: u64,
    observed: Vec<Observation>,
    reloads: u64,
    refusals: u64,
    /// Resident memory in the middle and at the end, in KiB.
    memory: [u64; 2],
}

#[tokio::test]
async fn rules_change_15_times_in_3_s_under_four_processes() {
    // A process loads files that are equal in two reads, at least 50 ms apart. A busy machine delays reads.
    run("short", 15, Duration::from_millis(200)).await;
}

#[tokio::test]
#[ignore = "takes 25 s: scripts/test full"]
async fn long_form_rules_change_200_times_in_20_s_under_four_processes() {
    run("long", 200, Duration::from_millis(100)).await;
}

async fn run(name: &str, reloads: u64, pause: Duration) {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let mut map = ConfigMap::new(name);
    let path = map.folder.0.display().to_string();
    let spawn = || Instance::spawn("rules::under_load::instance", JOB, &[server.url(), &namespace, &path]);
    let mut fleet: Vec<_> = (0..PROCESSES).map(|_| spawn()).collect();
    for instance in &mut fleet {
        assert_eq!(instance.says().await, json!({"ready": true}));
        instance.start().await;
    }
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0..reloads {
        ticks.tick().await;
        match round % 7 {
            0 | 4 => map.edit(),
            1 | 5 => map.rename(),
            2 => map.swap(),
            3 => {
                map.write_invalid();
                map.swap();
            }
            _ => {
                map.write_invalid();
                map.edit();
            }
        }
        if round == reloads / 2 {
            all_report(&mut fleet, &json!({"counted": true})).await;
            map.write_invalid();
            all_report(&mut fleet, &json!({"rejected": true})).await;
        }
    }
    // Every process must have loaded the last set by then, also on a busy machine. The lags show whether it
    // did so in time.
    tokio::time::sleep(3 * LIVE).await;
    let mut reports: Vec<Report> = Vec::new();
    for instance in &mut fleet {
        instance.start().await;
        reports.push(serde_json::from_value(instance.says().await).unwrap());
    }
    let ended = now_us();
    let mut lags = Vec::new();
    for report in &reports {
        lags.extend(map.lags(report, ended));
        assert!(report.reloads >= reloads / 4, "{} reloads", report.reloads);
        assert!(report.refusals > 0 && report.checks > 100 * reloads / 10);
        let [middle, end] = report.memory;
        assert!(end <= middle + MAX_GROWTH_KIB, "{middle} KiB, then {end} KiB");
    }
    let checks: u64 = reports.iter().map(|report| report.checks).sum();
    // Every check was charged, and no reload dropped a charge.
    let limits = Loader::new().load(map.folder.0.join("..spare")).unwrap();
    let limits = limits.bind(&limiter(server.url(), &namespace));
    for domain in ["a", "b"] {
        let decision = limits.check(domain, &[Descriptor::from([("k", "0")]).hits(0)]).await.unwrap();
        let decision = decision.binding().unwrap().decision().unwrap();
        assert_eq!(decision.limit() - decision.remaining(), checks);
    }
    lags.sort_unstable();
    let per_process =
        |column: fn(&Report) -> String| reports.iter().map(column).collect::<Vec<_>>().join(", ");
    eprintln!(
        "{reloads} changes in {:?}: {checks} checks; effective after {} ms (median), {} ms (maximum); reloads {}; rejected {}; KiB {}",
        pause * u32::try_from(reloads).unwrap(),
        lags[lags.len() / 2] / 1_000,
        lags[lags.len() - 1] / 1_000,
        per_process(|report| report.reloads.to_string()),
        per_process(|report| report.refusals.to_string()),
        per_process(|report| format!("{:?}", report.memory)),
    );
}

/// Sends the next line to each process, then asserts that each reports this.
async fn all_report(fleet: &mut [Instance], expected: &Value) {
    for instance in &mut *fleet {
        instance.start().await;
    }
    for instance in fleet {
        assert_eq!(instance.says().await, *expected);
    }
}

fn file(domain: &str, limit: u64) -> String {
    let rule = |at: usize| {
        format!("  - {{ key: k, value: '{at}', rate_limit: {{ unit: year, requests_per_unit: {limit} }} }}\n")
    };
    format!("domain: {domain}\ndescriptors:\n{}", (0..RULES).map(rule).collect::<String>())
}

impl ConfigMap {
    fn new(name: &str) -> Self {
        let mut map = Self { folder: Folder::new(name), version: 0, written: Vec::new() };
        map.swap();
        for name in ["a.yaml", "b.yaml"] {
            symlink(format!("..data/{name}"), map.at(name)).unwrap();
        }
        fs::create_dir(map.at("..spare")).unwrap();
        fs::write(map.at("..spare/a.yaml"), file("a", BASE_LIMIT) + "---\n" + &file("b", BASE_LIMIT))
            .unwrap();
        map
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn next_limit(&mut self) -> u64 {
        self.version += 1;
        BASE_LIMIT + self.version
    }

    fn record_write(&mut self, began: u64, limits: Limits) {
        self.written.push(Write { began, ended: now_us(), limits });
    }

    /// Returns the current limit of `b.yaml`.
    fn limit_of_b(&self) -> u64 {
        self.written.last().unwrap().limits.1
    }

    fn edit(&mut self) {
        let (began, limit) = (now_us(), self.next_limit());
        fs::write(self.at("..data/a.yaml"), file("a", limit)).unwrap();
        self.record_write(began, (limit, self.limit_of_b()));
    }

    fn rename(&mut self) {
        let (began, limit) = (now_us(), self.next_limit());
        fs::write(self.at("..data/a.new"), file("a", limit)).unwrap();
        fs::rename(self.at("..data/a.new"), self.at("..data/a.yaml")).unwrap();
        self.record_write(began, (limit, self.limit_of_b()));
    }

    /// Replaces both files atomically.
    fn swap(&mut self) {
        let (began, limit) = (now_us(), self.next_limit());
        let before = fs::read_link(self.at("..data")).ok();
        let version = format!("..{limit}");
        fs::create_dir(self.at(&version)).unwrap();
        for domain in ["a", "b"] {
            fs::write(self.at(&version).join(format!("{domain}.yaml")), file(domain, limit)).unwrap();
        }
        symlink(&version, self.at("..data_tmp")).unwrap();
        fs::rename(self.at("..data_tmp"), self.at("..data")).unwrap();
        self.record_write(began, (limit, limit));
        if let Some(before) = before {
            fs::remove_dir_all(self.at(before.to_str().unwrap())).unwrap();
        }
    }

    /// Writes an invalid file. The previous set must stay active.
    fn write_invalid(&self) {
        let text = file("a", 7).replace("value: '49'", "valeu: '49'");
        fs::write(self.at("..data/a.yaml"), text).unwrap();
    }

    /// Returns, for each set that a process used, the time in µs that it stayed active after the files were
    /// replaced.
    fn lags(&self, report: &Report, ended: u64) -> Vec<u64> {
        let lag = |at: usize| {
            let Observation { at_us: since, limits, .. } = report.observed[at];
            let written = self.written.iter().position(|write| write.limits == limits);
            let written = written.unwrap_or_else(|| panic!("{limits:?} was never written"));
            // An instance can observe a set before this process returns from writing it.
            assert!(since >= self.written[written].began, "observed before it was written");
            let replaced = self.written.get(written + 1).map_or(ended, |next| next.ended);
            let (until, lost_us) =
                report.observed.get(at + 1).map_or((ended, 0), |next| (next.at_us, next.lost_us));
            let lag = until.saturating_sub(replaced);
            let max_lag = extended(LIVE, Duration::from_micros(lost_us));
            assert!(
                Duration::from_micros(lag) <= max_lag,
                "the previous set was active for {lag} us, more than {max_lag:?}"
            );
            lag
        };
        let lags: Vec<u64> = (0..report.observed.len()).map(lag).collect();
        assert_eq!(
            report.observed.last().unwrap().limits,
            self.written.last().unwrap().limits,
            "the last set written is active"
        );
        lags
    }
}

#[derive(Clone, Default)]
struct Counted(Arc<[AtomicU64; 2]>);

impl Observer for Counted {
    fn on(&self, event: &Event<'_>) {
        if let Event::RulesReloaded(rules) = *event {
            self.0[usize::from(rules.is_err())].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn limiter(url: &str, namespace: &str) -> Limiter {
    builder_as_is(url).namespace(namespace).deadline(PATIENCE).build().unwrap()
}

/// Returns the limits, after asserting that the set is complete.
fn limits_of(limits: &RulesLimiter) -> Limits {
    let all: Vec<u64> = limits.rules().iter().map(|rule| rule.quota().unwrap().limit()).collect();
    assert_eq!(all.len(), 2 * RULES, "incomplete set");
    let (a, b) = all.split_at(RULES);
    assert!(a.iter().all(|limit| *limit == a[0]) && b.iter().all(|limit| *limit == b[0]), "{all:?}");
    (a[0], b[0])
}

/// Not a test: the entry point of the processes that the tests above start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the tests above"]
#[expect(clippy::print_stdout, reason = "the instance reports on stdout")]
async fn instance() {
    let Ok(job) = std::env::var(JOB) else { return };
    let [url, namespace, folder] = job.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let counted = Counted::default();
    let limiter = builder_as_is(url).namespace(namespace).deadline(PATIENCE).observer(counted.clone());
    let watched = Arc::new(Loader::new().watch(folder, &limiter.build().unwrap()).unwrap());
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    println!("{}", json!({"ready": true}));
    commands.next_line().await.unwrap().unwrap();

    let (is_over, observed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let sampler = tokio::spawn({
        let (watched, is_over, observed) = (watched.clone(), is_over.clone(), observed.clone());
        async move {
            let start = || LostTime::start(&["self".to_owned()]);
            let (mut last, mut lost) = (None, start());
            while !is_over.load(Ordering::Relaxed) {
                let limits = limits_of(&watched.limits());
                if last.replace(limits) != Some(limits) {
                    let at_us = now_us();
                    let lost = std::mem::replace(&mut lost, start()).end();
                    let lost_us = u64::try_from(lost.as_micros()).unwrap();
                    observed.lock().unwrap().push(Observation { at_us, limits, lost_us });
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            lost.end();
        }
    });
    let checkers: Vec<_> = (0..TASKS)
        .map(|_| {
            let (watched, is_over) = (watched.clone(), is_over.clone());
            tokio::spawn(async move {
                let mut checks = 0;
                while !is_over.load(Ordering::Relaxed) {
                    // One version decides the whole request, even if a reload happens in between.
                    let limits = watched.limits();
                    let expected = limits_of(&limits);
                    for (domain, expected) in [("a", expected.0), ("b", expected.1)] {
                        let decision = limits.check(domain, &[Descriptor::from([("k", "0")])]).await.unwrap();
                        let decision = decision.binding().unwrap().decision().unwrap();
                        assert!(decision.is_allowed());
                        assert_eq!(decision.limit(), expected);
                    }
                    checks += 1;
                }
                checks
            })
        })
        .collect();
    commands.next_line().await.unwrap().unwrap();
    let refusals = || counted.0[1].load(Ordering::Relaxed);
    let before = refusals();
    println!("{}", json!({"counted": true}));
    commands.next_line().await.unwrap().unwrap();
    soon("an invalid file is rejected", async || refusals() > before).await;
    println!("{}", json!({"rejected": true}));
    let middle = Holdings::now().memory_kb;
    commands.next_line().await.unwrap().unwrap();
    let memory = [middle, Holdings::now().memory_kb];
    is_over.store(true, Ordering::Relaxed);
    sampler.await.unwrap();
    let mut checks = 0;
    for task in checkers {
        checks += task.await.unwrap();
    }
    let [reloads, refusals] = [0, 1].map(|at| counted.0[at].load(Ordering::Relaxed));
    let observed = std::mem::take(&mut *observed.lock().unwrap());
    println!("{}", json!(Report { checks, observed, reloads, refusals, memory }));
}

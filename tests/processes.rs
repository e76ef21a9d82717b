//! Several processes, each with many tasks, share one Redis. Together they admit exactly the quota.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::Rng;
use serde_json::{Value, json};
use tidegate::{Limiter, Quota, Rate};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::fixture::{HOUR, History, PATIENCE, namespace, quotas, soon};
use crate::support::instance::Instance;

const PROCESSES: usize = 8;
const TASKS: usize = 8;
/// The variable that gives an instance its URL, namespace and job, separated by spaces.
const JOB: &str = "TIDEGATE_TEST_INSTANCE";

#[tokio::test]
async fn fleet_is_admitted_exactly_the_units_of_the_definition() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let fleet = spawn(server.url(), &namespace, "race", PROCESSES).await;
    // Starts early in a window. If an aligned window ended before all instances have started, they would make
    // fewer checks than its limit.
    let clock = connect(server.url(), &namespace).gate("clock", PLENTY.1);
    soon("a window begins", async || {
        let now = Duration::from_micros(clock.peek("").await.unwrap().server_now_us());
        now.as_micros() % HOT_WINDOW.as_micros() < HOT_WINDOW.as_micros() / 10
    })
    .await;
    let results = run(fleet).await;
    for (gate, quota) in hot_quotas() {
        let mut fleet = History::default();
        for result in &results {
            let instance = History(serde_json::from_value(result[gate].clone()).unwrap());
            assert!(instance.admitted() > 0, "{quota}: an instance was never admitted");
            assert!(instance.admitted() < instance.checks(), "{quota}: an instance was never denied");
            fleet.merge(&instance);
        }
        let (checks, admitted, ceiling) = (fleet.checks(), fleet.admitted(), fleet.ceiling(&quota));
        eprintln!("{quota}: {checks} checks, {admitted} admitted, ceiling {ceiling}");
        assert!(checks >= 3 * ceiling, "{quota}: {checks} checks are no load for a ceiling of {ceiling}");
        assert!(admitted <= ceiling, "{quota}: {admitted} admitted, above {ceiling}");
        fleet.assert_exact(&quota);
        // Tests the plain definition: a check is denied only if all units of its window are admitted.
        let window_us = u64::try_from(HOT_WINDOW.as_micros()).unwrap();
        for (&instant, &(checks, admitted)) in &fleet.0 {
            let first = match gate {
                "log" => instant + 1 - window_us,
                "fixed.clock" => instant - instant % window_us,
                _ => break,
            };
            let in_window: u64 = fleet.0.range(first..=instant).map(|(_, (_, admitted))| admitted).sum();
            assert!(in_window <= quota.limit(), "{quota}: {in_window} admitted in a window, at {instant}");
            assert!(checks == admitted || in_window == quota.limit(), "{quota}: denied at {in_window}");
        }
    }
}

#[tokio::test]
async fn no_gate_of_a_group_is_charged_if_another_denies() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let results = run(spawn(server.url(), &namespace, "groups", PROCESSES).await).await;
    let limiter = connect(server.url(), &namespace);
    for (gate, quota) in scarce_quotas() {
        let gate_of = limiter.gate(gate, quota);
        for key in KEYS {
            let peek = gate_of.peek(key).await.unwrap();
            let admitted = sum(&results, "admitted", &format!("{gate} {key}"));
            assert_eq!(peek.limit() - peek.remaining(), admitted, "{quota}, key {key}");
        }
        assert!(sum(&results, "denied", gate) > 0, "{quota} never denied");
    }
    assert!(sum(&results, "denied", "") > 0, "no group was admitted");
}

#[tokio::test]
async fn killed_process_does_not_affect_the_others() {
    // On a busy machine, the quota may be used up before the victim is killed.
    for _ in 0..5 {
        if kill_one_of_four().await {
            return;
        }
    }
    panic!("the quota is used up before the victim is killed");
}

/// Kills one of four processes that share a quota. Returns whether units were left shortly before.
async fn kill_one_of_four() -> bool {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let gate = connect(server.url(), &namespace).gate(PLENTY.0, PLENTY.1);
    let mut fleet = spawn(server.url(), &namespace, "plenty", 4).await;
    for instance in &mut fleet {
        instance.start().await;
    }
    let mut victim = fleet.pop().unwrap();
    let mut left = 0;
    soon("the victim makes checks", async || {
        left = gate.peek("hot").await.unwrap().remaining();
        left < PLENTY.1.limit() * 9 / 10
    })
    .await;
    victim.process.kill().await.unwrap();

    let mut survivors = History::default();
    for mut instance in fleet {
        let result = instance.says().await;
        survivors.merge(&History(serde_json::from_value(result[PLENTY.0].clone()).unwrap()));
    }
    assert!(survivors.admitted() <= PLENTY.1.limit());
    assert!(survivors.admitted() < survivors.checks(), "the survivors did not use the whole quota");
    assert_eq!(gate.peek("hot").await.unwrap().remaining(), 0);
    left > 0
}

#[tokio::test]
async fn namespaces_on_one_redis_are_independent() {
    let server = tidegate_testkit::shared();
    let (one, other) = (connect(server.url(), &namespace()), connect(server.url(), &namespace()));
    for (gate, quota) in quotas(1, HOUR) {
        assert!(one.gate(gate, quota).check("user:42").await.unwrap().is_allowed());
        assert!(other.gate(gate, quota).check("user:42").await.unwrap().is_allowed());
        assert!(!one.gate(gate, quota).check("user:42").await.unwrap().is_allowed());
        one.gate(gate, quota).reset("user:42").await.unwrap();
        assert!(!other.gate(gate, quota).check("user:42").await.unwrap().is_allowed());
    }
}

/// Returns quotas so slow that even a very busy machine makes more than three times as many checks.
fn hot_quotas() -> Vec<(&'static str, Quota)> {
    quotas(60, HOT_WINDOW).into()
}

/// Returns quotas so slow that no unit becomes available during the test, so the units used are the units
/// admitted. A window of a year starts during the test at most once a year.
fn scarce_quotas() -> [(&'static str, Quota); 5] {
    let year = 365 * 24 * HOUR;
    [
        ("token", Quota::token_bucket(40, Rate::new(40, year))),
        ("leaky", Quota::leaky_bucket(36, Rate::new(36, year))),
        ("fixed", Quota::fixed_window(32, year)),
        ("log", Quota::sliding_log(28, year)),
        ("counter", Quota::sliding_counter(24, year)),
    ]
}

const HOT_WINDOW: Duration = Duration::from_millis(500);
const KEYS: [&str; 4] = ["ann", "bob", "cy", "di"];
const PLENTY: (&str, Quota) = ("plenty", Quota::fixed_window(20_000, HOUR));

fn connect(url: &str, namespace: &str) -> Limiter {
    Limiter::builder().url(url).namespace(namespace).deadline(PATIENCE).build().unwrap()
}

fn sum(results: &[Value], outcome: &str, name: &str) -> u64 {
    results.iter().filter_map(|result| result[outcome][name].as_u64()).sum()
}

async fn run(mut fleet: Vec<Instance>) -> Vec<Value> {
    for instance in &mut fleet {
        instance.start().await;
    }
    let mut results = Vec::new();
    for mut instance in fleet {
        results.push(instance.says().await);
    }
    results
}

async fn spawn(url: &str, namespace: &str, job: &str, size: usize) -> Vec<Instance> {
    let one = || Instance::spawn("processes::instance", JOB, &[url, namespace, job]);
    let mut fleet: Vec<_> = (0..size).map(|_| one()).collect();
    for instance in &mut fleet {
        assert_eq!(instance.says().await, json!({"ready": true}));
    }
    fleet
}

/// Not a test: the program that the processes of the tests above run.
#[tokio::test]
#[ignore = "run by the other tests"]
async fn instance() {
    let Ok(settings) = std::env::var(JOB) else { return };
    let [url, namespace, job] = *settings.split(' ').collect::<Vec<_>>() else { panic!("{settings}") };
    let limiter = connect(url, namespace);
    limiter.ready().await.unwrap();
    report(&json!({"ready": true}));
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    if input.next_line().await.unwrap().is_none() {
        return;
    }
    let work = async {
        match job {
            "race" => {
                race(&limiter, &hot_quotas(), |history, time| {
                    history.checks() >= 60 && history.admitted() > 0 && time >= Duration::from_millis(1_200)
                })
                .await
            }
            "plenty" => race(&limiter, &[PLENTY], |history, _| history.checks() >= 1_000).await,
            "groups" => groups(&limiter).await,
            _ => panic!("no such job: {job}"),
        }
    };
    tokio::select! {
        result = work => report(&result),
        _ = input.next_line() => return,
    }
    let _ = input.next_line().await;
}

#[expect(clippy::print_stdout, reason = "an instance reports on its standard output")]
fn report(value: &Value) {
    println!("\n{value}");
}

/// Checks one key at each gate. Each task stops when `is_enough` returns true for its history and the elapsed
/// time.
async fn race(
    limiter: &Limiter,
    quotas: &[(&str, Quota)],
    is_enough: fn(&History, Duration) -> bool,
) -> Value {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for &(name, quota) in quotas {
        for _ in 0..TASKS {
            let gate = limiter.gate(name, quota);
            let task = tokio::spawn(async move {
                let mut history = History::default();
                while !is_enough(&history, start.elapsed()) {
                    history.add(&gate.check("hot").await.unwrap());
                }
                history
            });
            tasks.push((name, task));
        }
    }
    let mut histories = BTreeMap::<_, History>::new();
    for (name, task) in tasks {
        histories.entry(name).or_default().merge(&task.await.unwrap());
    }
    histories.into_iter().map(|(name, history)| (name.to_owned(), json!(history.0))).collect()
}

/// Checks groups of one to three gates, each with its own key and cost. Returns the units admitted, and the
/// number of denials by each gate. The count under the name "" is the number of groups that no gate denied.
async fn groups(limiter: &Limiter) -> Value {
    let gates = scarce_quotas().map(|(name, quota)| limiter.gate(name, quota));
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let (limiter, gates) = (limiter.clone(), gates.clone());
        tasks.push(tokio::spawn(async move {
            let mut outcomes = Vec::new();
            for _ in 0..40 {
                let picks: Vec<(usize, &str, u64)> = {
                    let mut random = rand::rng();
                    let size = random.random_range(1..=3);
                    rand::seq::index::sample(&mut random, gates.len(), size)
                        .iter()
                        .map(|gate| {
                            (gate, KEYS[random.random_range(0..KEYS.len())], random.random_range(1..=3))
                        })
                        .collect()
                };
                let checks = picks.iter().map(|&(gate, key, cost)| gates[gate].key(key).cost(cost));
                let decision = limiter.check_all(checks).await.unwrap();
                if decision.is_allowed() {
                    outcomes.push(("denied", String::new(), 1));
                    for (gate, key, cost) in picks {
                        outcomes.push(("admitted", format!("{} {key}", gates[gate].name().unwrap()), cost));
                    }
                } else {
                    assert!(!decision.binding().is_allowed(), "{decision:?}");
                    let denied = decision.each_alone().iter().filter(|decision| !decision.is_allowed());
                    outcomes.extend(denied.map(|decision| ("denied", decision.gate().to_owned(), 1)));
                }
            }
            outcomes
        }));
    }
    let mut sums = BTreeMap::<&str, BTreeMap<String, u64>>::new();
    for task in tasks {
        for (outcome, name, units) in task.await.unwrap() {
            *sums.entry(outcome).or_default().entry(name).or_default() += units;
        }
    }
    json!(sums)
}

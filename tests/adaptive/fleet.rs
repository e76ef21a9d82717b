//! Adaptive limits that several processes share over Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Adaptive, Builder, Event, Gate, Limiter, Observer, OnFailure, Permit, Quota, Source};
use tidegate_testkit::{Cluster, Fault, Proxy, Server};

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{PATIENCE, calls, soon};
use crate::support::world::World;

/// The deadline where Redis does not answer.
const DEADLINE: Duration = Duration::from_millis(300);
const SETTINGS: Adaptive = Adaptive::new().min(4);

fn settings(url: &str) -> Builder {
    let builder = Limiter::builder().url(url).namespace("fleet").deadline(PATIENCE).stderr_warnings(false);
    builder.on_failure(OnFailure::Error).breaker(false).instances(1).publish_figures(false)
}

fn connect(url: &str) -> Gate {
    gate(settings(url), SETTINGS)
}

fn gate(builder: Builder, settings: Adaptive) -> Gate {
    builder.build().unwrap().gate("gate", Quota::in_flight(40)).adaptive(settings)
}

/// Runs as many operations of 5 ms as the limit allows, until it is told to stop.
struct Load {
    is_stopped: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(gate: &Gate) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let tasks = (0..20).map(|_| {
            let (gate, is_stopped) = (gate.clone(), is_stopped.clone());
            tokio::spawn(async move {
                while !is_stopped.load(Ordering::SeqCst) {
                    let Ok(acquired) = gate.acquire_timeout("x", PATIENCE).await else { continue };
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    drop(acquired);
                }
            })
        });
        let tasks = tasks.collect();
        Self { is_stopped, tasks }
    }

    async fn stop(self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

fn redis_key(gate: &Gate) -> String {
    gate.redis_key("x").unwrap().replace(":in_flight:", ":adaptive/in_flight:")
}

fn stored_limit(server: &Server, gate: &Gate) -> u64 {
    let text = server.cli(&["HGET", &redis_key(gate), "limit"]).unwrap();
    text.trim_matches('"').parse::<f64>().unwrap() as u64
}

fn store(server: &Server, gate: &Gate, limit: &str) {
    server.cli(&["HSET", &redis_key(gate), "limit", limit]).unwrap();
}

async fn limit(gate: &Gate) -> u64 {
    gate.acquire("x").await.unwrap().decision().limit()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_shares_one_limit_that_grows_under_load() {
    let server = Server::process(&[]).unwrap();
    let gates = [connect(server.url()), connect(server.url())];
    let loads: Vec<Load> = gates.iter().map(Load::start).collect();
    soon("both have learned a higher limit", async || {
        gates.iter().all(|gate| gate.adaptive_limit("x").is_some_and(|limit| limit > 4))
    })
    .await;
    for load in loads {
        load.stop().await;
    }
    let third = connect(server.url());
    // The last reports of the others may still arrive.
    soon("a new process has the limit", async || limit(&third).await == stored_limit(&server, &third)).await;
    assert!(stored_limit(&server, &third) > 4);
    let ttl: u64 = server.cli(&["TTL", &redis_key(&third)]).unwrap()["(integer) ".len()..].parse().unwrap();
    assert!((590..=600).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn changed_limit_reaches_a_process_with_its_next_report() {
    let server = Server::process(&[]).unwrap();
    let gate = connect(server.url());
    assert_eq!(limit(&gate).await, 4);
    store(&server, &gate, "17.5");
    soon("the new limit", async || limit(&gate).await == 17).await;
    // More than the quota is not more than the quota.
    store(&server, &gate, "1e9");
    soon("the highest limit", async || limit(&gate).await == 40).await;
}

#[tokio::test]
async fn bounds_of_each_process_apply_to_its_acquires() {
    let server = Server::process(&[]).unwrap();
    let low = connect(server.url());
    let high = gate(settings(server.url()), Adaptive::new().min(10));
    assert_eq!((limit(&low).await, limit(&high).await), (4, 10));
    let other = settings(server.url()).build().unwrap().gate("gate", Quota::in_flight(3)).adaptive(SETTINGS);
    assert_eq!(limit(&other).await, 3, "a lower quota");
}

#[tokio::test]
async fn calls_of_a_key_are_at_most_two_per_window() {
    let server = Server::process(&[]).unwrap();
    let gate = connect(server.url());
    // Other scripts of the key call it at most once in 15 minutes.
    let reports = || calls(&server, "pexpireat");
    let held = gate.acquire("x").await.unwrap();
    let start = std::time::Instant::now();
    let before = reports();
    while start.elapsed() < Duration::from_secs(3) {
        drop(gate.acquire("x").await.unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let windows = start.elapsed().as_secs() + 1;
    let calls = reports() - before;
    assert!((1..=2 * windows + 1).contains(&calls), "{calls} calls in {windows} windows");
    drop(held);
}

#[tokio::test]
async fn limit_stays_while_redis_does_not_answer_and_after() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let gate = gate(settings(&proxy.url()).deadline(DEADLINE).on_failure(OnFailure::Local), SETTINGS);
    soon("the limit is known", async || limit(&gate).await == 4).await;
    store(&server, &gate, "10");
    soon("the new limit", async || limit(&gate).await == 10).await;
    proxy.set(Fault::BlackHole);
    let mut permits: Vec<Permit> = Vec::new();
    loop {
        let acquired = gate.acquire("x").await.unwrap();
        assert_eq!(acquired.decision().source(), Source::Local);
        match acquired.permit() {
            Some(permit) => permits.push(permit),
            None => break,
        }
    }
    assert_eq!(permits.len(), 10, "this process's share of the current limit");
    drop(permits);
    tokio::time::sleep(2 * DEADLINE).await;
    assert_eq!(gate.adaptive_limit("x"), Some(10));
    store(&server, &gate, "20");
    proxy.set(Fault::None);
    soon("Redis's limit", async || limit(&gate).await == 20).await;
}

#[tokio::test]
async fn process_without_any_reply_acquires_by_the_quota() {
    let gate = gate(settings("redis://127.0.0.1:1").on_failure(OnFailure::Local), SETTINGS);
    let acquired = gate.acquire("x").cost(40).await.unwrap();
    assert!(acquired.is_allowed());
    assert_eq!(gate.adaptive_limit("x"), None);
}

#[tokio::test]
async fn limit_starts_again_when_redis_has_lost_it() {
    let server = Server::process(&[]).unwrap();
    let gate = connect(server.url());
    assert_eq!(limit(&gate).await, 4);
    store(&server, &gate, "10");
    soon("the new limit", async || limit(&gate).await == 10).await;
    server.flush().unwrap();
    soon("the lower bound", async || limit(&gate).await == 4).await;
}

#[tokio::test]
async fn least_rights_are_enough() {
    let world = World::redis();
    let gate = world.gate("gate", Quota::in_flight(40)).adaptive(SETTINGS);
    assert_eq!(limit(&gate).await, 4);
    assert_eq!(gate.adaptive_limit("x"), Some(4));
}

#[tokio::test]
async fn limits_of_a_cluster_lie_in_the_slots_of_their_keys() {
    let cluster = Cluster::start().unwrap();
    let builder = Limiter::builder().cluster(cluster.urls()).deadline(PATIENCE);
    let limiter = builder.on_failure(OnFailure::Error).build().unwrap();
    let gate = limiter.gate("gate", Quota::in_flight(40)).adaptive(SETTINGS);
    for key in ["a", "b", "c", "d"] {
        let acquired = gate.acquire(key).await.unwrap();
        assert_eq!((acquired.decision().limit(), gate.adaptive_limit(key)), (4, Some(4)), "{key}");
    }
}

#[derive(Default)]
struct Failures(AtomicU64);

impl Observer for Failures {
    fn on(&self, event: &Event<'_>) {
        if let Event::Failed { gate, error } = *event {
            assert!(gate == "gate" && error.is_corrupt_state(), "{error}");
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn corrupt_limit_is_reported_and_the_last_one_stays() {
    let server = Server::process(&[]).unwrap();
    let failures = Arc::new(Failures::default());
    let gate = gate(settings(server.url()).observer(failures.clone()), SETTINGS);
    assert_eq!(limit(&gate).await, 4);
    for text in ["nan", "-inf", "-1", "x"] {
        store(&server, &gate, text);
        let before = failures.0.load(Ordering::SeqCst);
        soon("it is reported", async || {
            assert_eq!(limit(&gate).await, 4);
            failures.0.load(Ordering::SeqCst) > before
        })
        .await;
    }
    gate.reset("x").await.unwrap();
    assert_eq!(server.cli(&["EXISTS", &redis_key(&gate)]).unwrap(), "(integer) 0");
    soon("the limit is kept again", async || {
        limit(&gate).await;
        server.cli(&["EXISTS", &redis_key(&gate)]).unwrap() == "(integer) 1"
    })
    .await;
}

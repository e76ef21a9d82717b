//! Failover after a primary stops.

use std::time::{Duration, Instant};

use tidegate::{Builder, Gate, OnFailure, Quota, Source};
use tidegate_testkit::{Cluster, Server};

use super::{MINUTE, builder, owner};
use crate::support::fixture::{PATIENCE, soon};
use crate::support::stalls::{Stalls, extended, process_id};

const LIMIT: u64 = 50;

fn settings(builder: Builder) -> Builder {
    builder.deadline(Duration::from_millis(100)).on_failure(OnFailure::Closed).deny_cache(Duration::ZERO)
}

/// Returns the time at which there are three primaries again, without the victim.
fn promoted(cluster: &Cluster, victim: &str) -> impl Future<Output = Instant> + use<> {
    let urls: Vec<String> = cluster.urls().into_iter().filter(|url| url != victim).collect();
    let watch = move || {
        let start = Instant::now();
        let client = |url: &String| redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        let mut nodes: Vec<redis::Connection> = urls.iter().map(client).collect();
        loop {
            let is_primary = |node: &mut redis::Connection| {
                let role: Vec<redis::Value> = redis::cmd("ROLE").query(node).unwrap();
                role[0] == redis::Value::BulkString(b"master".to_vec())
            };
            if nodes.iter_mut().filter_map(|node| is_primary(node).then_some(())).count() == 3 {
                return Instant::now();
            }
            assert!(start.elapsed() < PATIENCE, "no replica was promoted");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let watching = tokio::task::spawn_blocking(watch);
    async { watching.await.unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_primary_admits_at_most_one_more_limit_and_recovers_within_two_seconds() {
    let elsewhere = outage("-KILL").await;
    assert!(elsewhere > 0, "the other primaries were not checked");
}

/// The connections of a stopped process stay open, and it never replies `MOVED`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_primary_keeps_the_same_bounds() {
    outage("-STOP").await;
}

/// Sends a signal to a primary, and runs checks through the outage and the promotion. Returns the number of
/// decisions by the other primaries in the meantime.
async fn outage(signal: &str) -> usize {
    let cluster = Cluster::start().unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = settings(builder(&cluster)).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(LIMIT, 60 * MINUTE));
    let (mut admitted, hit) = (0, "user:42");
    // Outside the outage, a busy machine must not cause a timeout.
    let patient = || gate.key(hit).deadline(PATIENCE).check();
    for _ in 0..LIMIT / 2 {
        admitted += u64::from(patient().await.unwrap().is_allowed());
    }
    let node = owner(&cluster, &gate.redis_key(hit).unwrap());
    let (victim, process) = (node.url().to_owned(), process_id(node));
    let is_elsewhere = |key: &String| owner(&cluster, &gate.redis_key(key).unwrap()).url() != victim;
    let elsewhere = (0..).map(|n| format!("user:{n}")).find(is_elsewhere).unwrap();
    assert!(gate.key(&elsewhere).deadline(PATIENCE).check().await.unwrap().is_allowed());

    cluster.allow_failover().unwrap();
    let stalls = Stalls::watch(&["self".to_owned()]);
    assert!(std::process::Command::new("kill").args([signal, &process]).status().unwrap().success());
    let (started, promoted) = (Instant::now(), promoted(&cluster, &victim));
    let (mut by_failure_policy, mut decided_elsewhere, mut checks) = (0, 0, Vec::new());
    let decided = loop {
        let called = Instant::now();
        let decision = gate.check(hit).await.unwrap();
        checks.push((called, Instant::now()));
        if decision.source() == Source::Redis {
            admitted += u64::from(decision.is_allowed());
            break Instant::now();
        }
        by_failure_policy += 1;
        let other = gate.key(&elsewhere).cost(0).check().await.unwrap();
        decided_elsewhere += usize::from(other.source() == Source::Redis);
        assert!(started.elapsed() < PATIENCE, "never decided by Redis again");
    };
    let promoted = promoted.await;
    let stalls = stalls.end();
    let late = decided.saturating_duration_since(promoted);
    let without_stalls =
        |(from, to): (Instant, Instant)| (to - from).saturating_sub(stalls.between(from, to));
    let longest = checks.into_iter().map(without_stalls).max().unwrap();
    eprintln!(
        "promoted after {:?}, decided {late:?} later; {decided_elsewhere} decisions by other primaries; \
         slowest check {longest:?}",
        promoted - started
    );
    let stalled = stalls.between(promoted, decided);
    let bound = extended(Duration::from_secs(2), stalled);
    assert!(late < bound, "{late:?} after the promotion, stalled for {stalled:?}");
    assert!(longest < Duration::from_millis(350), "{longest:?}");
    for _ in 0..3 * LIMIT {
        let decision = patient().await.unwrap();
        admitted += u64::from(decision.is_allowed() && decision.source() == Source::Redis);
    }
    // A check whose reply was lost may have been charged.
    let min = LIMIT.saturating_sub(by_failure_policy);
    assert!(
        (min..=2 * LIMIT).contains(&admitted),
        "{admitted} admitted, {by_failure_policy} not decided by Redis"
    );
    decided_elsewhere
}

/// Returns keys of all hash tags: those of this node, and those of the other nodes.
fn keys(node: &Server, gate: &Gate) -> (Vec<String>, Vec<String>) {
    let mut node = redis::Client::open(node.url()).unwrap().get_connection().unwrap();
    (0..300).map(|n| format!("user:{n}")).partition(|key| {
        let reply = redis::cmd("EXISTS").arg(gate.redis_key(key).unwrap()).query::<u8>(&mut node);
        reply.is_ok()
    })
}

fn clients(node: &Server) -> usize {
    let list = node.cli(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    list.lines().filter(|client| !client.contains("cmd=client")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_primary_does_not_delay_the_others_and_is_disconnected() {
    let cluster = Cluster::start().unwrap();
    cluster.prevent_failover().unwrap();
    for node in cluster.nodes() {
        // Otherwise the other nodes reject everything until a replica is promoted.
        assert_eq!(node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap(), "OK");
    }
    let deadline = Duration::from_millis(250);
    let limiter = builder(&cluster).deadline(deadline).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000_000, 60 * MINUTE));
    let victim = cluster.nodes().next().unwrap();
    let (victim_keys, other_keys) = keys(victim, &gate);
    assert!(
        victim_keys.len() > 50 && other_keys.len() > 100,
        "{} and {} keys",
        victim_keys.len(),
        other_keys.len()
    );
    for key in victim_keys.iter().chain(&other_keys) {
        assert!(gate.key(key).deadline(PATIENCE).check().await.unwrap().is_allowed());
    }

    let others = cluster.nodes().take(3).filter(|node| node.url() != victim.url());
    let processes: Vec<String> = others.map(process_id).chain(["self".to_owned()]).collect();
    cluster.allow_failover().unwrap();
    let stalls = Stalls::watch(&processes);
    let paused = victim.pause().unwrap();
    let (started, promoted) = (Instant::now(), promoted(&cluster, victim.url()));
    let load = {
        let gate = gate.clone();
        tokio::spawn(async move {
            let mut checks = Vec::new();
            while started.elapsed() < Duration::from_secs(4) {
                for key in &other_keys {
                    let called = Instant::now();
                    let source = gate.check(key).await.map(|decision| decision.source());
                    checks.push((called, Instant::now(), source));
                }
            }
            checks
        })
    };
    let mut failed = 0;
    let all_decided = async {
        while !gate.check_many(&victim_keys).await.iter().all(Result::is_ok) {
            failed += 1;
            assert!(started.elapsed() < PATIENCE, "never decided again");
        }
        Instant::now()
    };
    let (decided, promoted) = tokio::join!(all_decided, promoted);
    let late = decided.saturating_duration_since(promoted);
    let (checks, stalls) = (load.await.unwrap(), stalls.end());
    let mut longest = Duration::ZERO;
    for (called, returned, source) in &checks {
        let (took, stalled) = (*returned - *called, stalls.between(*called, *returned));
        longest = longest.max(took.saturating_sub(stalled));
        // A stall of a primary or of this process may use up the deadline.
        let is_by_redis = matches!(source, Ok(Source::Redis));
        assert!(is_by_redis || stalled > deadline / 2, "{source:?} after {took:?}, stalled for {stalled:?}");
    }
    eprintln!(
        "promoted after {:?}, all keys decided {late:?} later after {failed} failed attempts; \
         {} checks of other primaries, slowest {longest:?}",
        promoted - started,
        checks.len()
    );
    assert!(failed > 0, "no check failed during the outage");
    let stalled = stalls.between(promoted, decided);
    let bound = extended(Duration::from_secs(2), stalled);
    assert!(late < bound, "{late:?} after the promotion, stalled for {stalled:?}");
    assert!(longest < deadline + Duration::from_millis(20), "{longest:?}");

    drop(paused);
    soon("the connections of the victim are closed", async || clients(victim) == 0).await;
    for _ in 0..10 {
        assert!(gate.check_many(&victim_keys).await.iter().all(Result::is_ok));
        assert_eq!(clients(victim), 0, "the limiter connected to the paused node");
    }
}

/// Returns how often a node replied `MOVED`.
fn moved(node: &Server) -> u64 {
    let stats = node.cli(&["INFO", "errorstats"]).unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookups_of_a_lost_slot_are_limited() {
    let cluster = Cluster::start().unwrap();
    // The other nodes must not consider the victim failed during the load.
    cluster.prevent_failover().unwrap();
    let deadline = Duration::from_millis(50);
    let limiter = builder(&cluster).deadline(deadline).batching(false).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000_000, 60 * MINUTE));
    let victim = cluster.nodes().next().unwrap();
    let (victim_keys, other_keys) = keys(victim, &gate);
    for key in victim_keys.iter().chain(&other_keys) {
        assert!(gate.key(key).deadline(PATIENCE).check().await.unwrap().is_allowed());
    }
    let count = || cluster.nodes().filter(|node| node.url() != victim.url()).map(moved).sum::<u64>();
    let before = count();
    let _paused = victim.pause().unwrap();
    let started = Instant::now();
    let callers = (0..500).map(|_| {
        let (gate, key) = (gate.clone(), victim_keys[0].clone());
        tokio::spawn(async move {
            let mut failed = 0;
            while started.elapsed() < Duration::from_millis(500) {
                failed += u64::from(gate.check(&key).await.is_err());
            }
            failed
        })
    });
    let mut failed = 0;
    for caller in callers.collect::<Vec<_>>() {
        failed += caller.await.unwrap();
    }
    let (lookups, took) = (count() - before, started.elapsed());
    // At most one lookup every 10 ms. On a busy machine, the load takes longer than 550 ms.
    let max_lookups = 2 + u64::try_from(took.as_millis()).unwrap() / 10;
    eprintln!("{failed} checks failed, {lookups} lookups of another node in {took:?}");
    assert!(failed > 1_000, "{failed} checks failed");
    assert!((1..=max_lookups).contains(&lookups), "{lookups} in {took:?}");
}

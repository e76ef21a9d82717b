//! A primary without a replica becomes unavailable. The limiter has its default settings.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hdrhistogram::Histogram;
use tidegate::{Gate, Limiter, Quota, Source};
use tidegate_testkit::{Cluster, Server};
use tokio::task::JoinSet;

use super::MINUTE;
use crate::support::fixture::{namespace, soon};
use crate::support::stalls::{LostTime, process_id};

const LIMIT: u64 = 1_000_000;
const TASKS: usize = 60;
/// The default deadline of a limiter.
const DEADLINE: Duration = Duration::from_millis(100);

fn gate(limiter: &Limiter) -> Gate {
    limiter.gate("gate", Quota::fixed_window(LIMIT, 60 * MINUTE))
}

fn limiter(cluster: &Cluster, namespace: &str) -> Limiter {
    Limiter::builder().cluster(cluster.urls()).namespace(namespace).stderr_warnings(false).build().unwrap()
}

/// Returns this many keys of each node, by the node's URL.
fn keys_by_node(cluster: &Cluster, gate: &Gate, count: usize) -> HashMap<String, Vec<String>> {
    let nodes: Vec<&Server> = cluster.nodes().collect();
    let mut owners = HashMap::<String, &Server>::new();
    let mut found = HashMap::<String, Vec<String>>::new();
    for key in (0..).map(|n| format!("user:{n}")) {
        let redis_key = gate.redis_key(&key).unwrap();
        let hash_tag = redis_key.split(['{', '}']).nth(1).unwrap().to_owned();
        let owner = owners.entry(hash_tag).or_insert_with(|| {
            let is_owner = |node: &&&Server| !node.cli(&["EXISTS", &redis_key]).unwrap().contains("MOVED");
            nodes.iter().find(is_owner).unwrap()
        });
        let keys = found.entry(owner.url().to_owned()).or_default();
        if keys.len() < count {
            keys.push(key);
        }
        if found.values().map(Vec::len).sum::<usize>() == count * nodes.len() {
            return found;
        }
    }
    unreachable!("the iterator is infinite")
}

/// Checks all keys until Redis has decided each of them.
async fn warm_up(gate: &Gate, keys: &HashMap<String, Vec<String>>) {
    soon("all nodes are connected", async || {
        let decisions = join_all(keys.values().flatten().map(|key| gate.check(key))).await;
        decisions.into_iter().all(|decision| decision.unwrap().source() == Source::Redis)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_the_other_primaries_are_decided_by_redis() {
    let cluster = Cluster::with_shiftable_clock().unwrap();
    let limiter = limiter(&cluster, &namespace());
    let gate = gate(&limiter);
    let keys = keys_by_node(&cluster, &gate, 20);
    warm_up(&gate, &keys).await;
    let lost = cluster.nodes().next().unwrap();
    let lost_keys: Vec<String> = keys[lost.url()].clone();
    let others = cluster.nodes().filter(|node| node.url() != lost.url());
    let processes: Vec<String> = others.map(process_id).chain(["self".to_owned()]).collect();
    let paused = lost.pause().unwrap();

    let counts: [&'static AtomicUsize; 2] = std::array::from_fn(|_| &*Box::leak(Box::default()));
    let is_over: &'static AtomicBool = Box::leak(Box::default());
    let latencies: &'static Mutex<Histogram<u64>> =
        Box::leak(Box::new(Mutex::new(Histogram::new(3).unwrap())));
    let mut tasks = JoinSet::new();
    let all: Vec<String> = keys.values().flatten().cloned().collect();
    for task in 0..TASKS {
        let (gate, all, lost_keys) = (gate.clone(), all.clone(), lost_keys.clone());
        tasks.spawn(async move {
            let mut at = task;
            while !is_over.load(Ordering::Relaxed) {
                at = (at + 7) % all.len();
                let start = Instant::now();
                let decision = gate.check(&all[at]).await.unwrap();
                if !lost_keys.contains(&all[at]) {
                    latencies.lock().unwrap().saturating_record(start.elapsed().as_micros() as u64);
                    counts[usize::from(decision.source() == Source::Redis)].fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    // The load continues while the primary is unavailable. Only an interval in which stalls may have used up
    // deadlines is repeated.
    let mut intervals = Vec::new();
    let is_good = loop {
        let lost = LostTime::start(&processes);
        counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let [local, redis] = counts.map(|count| count.load(Ordering::Relaxed));
        let stalled = lost.end();
        let latencies = std::mem::replace(&mut *latencies.lock().unwrap(), Histogram::new(3).unwrap());
        let [p50, p99] = [0.5, 0.99].map(|quantile| latencies.value_at_quantile(quantile));
        eprintln!(
            "keys of the other primaries: {redis} decisions by Redis, {local} by the fallback, p50 {p50} us, p99 {p99} us, stalled for {stalled:?}"
        );
        intervals.push((redis, local, stalled));
        let is_good = redis > 300 && redis >= 99 * local;
        let may_repeat = stalled >= DEADLINE / 2 && intervals.len() < 8;
        if is_good || !may_repeat {
            break is_good;
        }
    };
    is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    assert!(is_good, "decisions by Redis, by the fallback, and stalls: {intervals:?}");

    drop(paused);
    let recovered = Instant::now();
    for key in &lost_keys {
        soon("Redis decides again", async || gate.check(key).await.unwrap().source() == Source::Redis).await;
    }
    eprintln!("recovered after {:?}", recovered.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovered_primary_is_reconciled_while_another_is_unavailable() {
    let cluster = Cluster::with_shiftable_clock().unwrap();
    let limiter = limiter(&cluster, &namespace());
    let gate = gate(&limiter);
    let keys = keys_by_node(&cluster, &gate, 200);
    warm_up(&limiter.gate("warm.up", Quota::fixed_window(LIMIT, 60 * MINUTE)), &keys).await;
    // A slow machine may have let the fallback decide some of the first checks.
    soon("the units of warming up are reconciled", async || unreconciled(&limiter) == 0).await;
    let nodes: Vec<&Server> = cluster.nodes().collect();
    let _lost = nodes[0].pause().unwrap();
    let recovering = nodes[1].pause().unwrap();
    let keys = keys[nodes[0].url()].iter().chain(&keys[nodes[1].url()]);
    for decision in join_all(keys.map(|key| gate.check(key))).await {
        assert_eq!(decision.unwrap().source(), Source::Local);
    }
    assert_eq!(unreconciled(&limiter), 400);
    drop(recovering);
    soon("the units of one primary are reconciled", async || unreconciled(&limiter) == 200).await;
}

/// Returns the number of keys for which the fallback admitted units that are not reconciled yet.
fn unreconciled(limiter: &Limiter) -> usize {
    let text = format!("{limiter:?}");
    let count = text.split("keys: ").nth(1).unwrap().split([' ', ',']).next().unwrap();
    count.parse().unwrap_or_else(|_| panic!("{text}"))
}

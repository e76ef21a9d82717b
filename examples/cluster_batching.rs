//! Measures the effect of batching on a Redis Cluster: 512 callers, 100,000 keys, three primaries, batching
//! on and off in turn.
//!
//! ```text
//! cargo run --release --features cluster --example cluster_batching
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Gate, Limiter, Quota, Rate};
use tidegate_testkit::Cluster;

const CALLERS: usize = 512;
const KEYS: u64 = 100_000;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;

fn gate(cluster: &Cluster, batching: bool) -> Gate {
    let builder =
        Limiter::builder().cluster(cluster.urls()).batching(batching).deadline(Duration::from_secs(10));
    builder.build().unwrap().gate("gate", Quota::token_bucket(1_000, Rate::per_second(1_000)))
}

/// Returns checks per second.
async fn round(gate: &Gate) -> f64 {
    let (start, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let callers = (0..CALLERS as u64).map(|caller| {
        let (gate, done) = (gate.clone(), done.clone());
        tokio::spawn(async move {
            let mut key = caller * 7_919;
            while start.elapsed() < ROUND {
                key = (key + 7_919 * CALLERS as u64 + 1) % KEYS;
                let decision = gate.check(format!("user:{key}")).await.unwrap();
                done.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
            }
        })
    });
    futures_util::future::join_all(callers.collect::<Vec<_>>()).await;
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

#[tokio::main]
async fn main() {
    let cluster = Cluster::start().unwrap();
    let (on, off) = (gate(&cluster, true), gate(&cluster, false));
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for number in 0..=ROUNDS {
        let pair = (round(&on).await, round(&off).await);
        println!("batching on {:.0}, off {:.0} checks/s, {:.2} times", pair.0, pair.1, pair.0 / pair.1);
        // The first round warms up.
        if number > 0 {
            with.push(pair.0);
            without.push(pair.1);
        }
    }
    let (with, without) = (median(with), median(without));
    println!("medians: on {with:.0}, off {without:.0} checks/s, {:.2} times", with / without);
}

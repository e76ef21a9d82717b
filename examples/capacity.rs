//! Measures the cost of decisions in Redis: the figures of docs/operate/deploy.md, on this machine or
//! another server.
//!
//! ```text
//! cargo run --release --example capacity
//! TIDEGATE_REDIS_URL=redis://10.0.0.1:6379 cargo run --release --example capacity
//! ```
//!
//! CPU time is that of Redis's main thread, as INFO reports it, per decision. It includes other load on that
//! server. There are 512 callers and a token bucket. All checks are admitted, except in the case named
//! "denied". The last lines are bytes per key of 20 bytes by `used_memory`, which includes Redis's overhead
//! for the key. All keys expire within half an hour.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use tidegate::{Gate, Lease, Limiter, Quota, Rate};
use tidegate_testkit::Server;

const CALLERS: usize = 512;
const KEYS: usize = 100_000;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

/// A case: its name, the gate, and a function that picks the key's number.
type Case<'a> = (&'a str, &'a Gate, fn() -> usize);

/// Returns the CPU seconds that Redis's main thread has used.
fn cpu(server: &Server) -> f64 {
    let info = server.cli(&["INFO", "cpu"]).unwrap();
    let used = info.lines().filter_map(|line| line.trim().split_once(':'));
    let main = used.filter(|(name, _)| name.starts_with("used_cpu_") && name.ends_with("_main_thread"));
    main.map(|(_, seconds)| seconds.parse::<f64>().unwrap()).sum()
}

fn memory(server: &Server) -> f64 {
    let info = server.cli(&["INFO", "memory"]).unwrap();
    let used = info.lines().find_map(|line| line.trim().strip_prefix("used_memory:"));
    used.unwrap().parse().unwrap()
}

/// Returns decisions per second, and microseconds of Redis's CPU time per decision.
async fn round(server: &Server, gate: &Gate, key: fn() -> usize) -> (f64, f64) {
    let (start, used, done) = (Instant::now(), cpu(server), Arc::new(AtomicU64::new(0)));
    let callers = (0..CALLERS).map(|_| {
        let (gate, done) = (gate.clone(), done.clone());
        tokio::spawn(async move {
            while start.elapsed() < ROUND {
                let _ = gate.check(format!("user:{:07}", key())).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    futures_util::future::join_all(callers.collect::<Vec<_>>()).await;
    let (took, done) = (start.elapsed().as_secs_f64(), done.load(Ordering::Relaxed) as f64);
    (done / took, (cpu(server) - used) * 1e6 / done)
}

fn unlike() -> usize {
    rand::rng().random_range(0..KEYS)
}

/// Picks the nth key in proportion to 1/n.
fn zipf() -> usize {
    (KEYS as f64).powf(rand::rng().random::<f64>()) as usize
}

fn hot() -> usize {
    0
}

fn median(mut rounds: Vec<(f64, f64)>) -> (f64, f64) {
    rounds.sort_by(|a, b| a.1.total_cmp(&b.1));
    rounds[rounds.len() / 2]
}

#[tokio::main]
async fn main() {
    let server = Server::given_or_start().unwrap();
    let builder =
        || Limiter::builder().url(server.url()).namespace("capacity").deadline(Duration::from_secs(10));
    let limiter = builder().build().unwrap();
    let large = Quota::token_bucket(100_000_000, Rate::per_minute(1_000_000));
    let gate = limiter.gate("gate", large);
    let leased = gate.clone().leased(Lease::new());
    let denied = limiter.gate("denied", Quota::token_bucket(1, Rate::per_minute(1)));
    let alone = builder().batching(false).build().unwrap().gate("gate", large);
    let cases: [Case<'_>; 6] = [
        ("unlike keys", &gate, unlike),
        ("keys by Zipf's law", &gate, zipf),
        ("one key", &gate, hot),
        ("one key, leased", &leased, hot),
        ("unlike keys, denied", &denied, unlike),
        ("unlike keys, a call for each", &alone, unlike),
    ];
    println!("{}", server.how());
    for (name, gate, key) in cases {
        // Warms up.
        round(&server, gate, key).await;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(round(&server, gate, key).await);
        }
        let (decisions, us) = median(rounds);
        println!("{name}: {us:.2} us of Redis for each of {decisions:.0} decisions/s");
    }
    bytes(&server, &builder().build().unwrap()).await;
}

/// Measures bytes per key over many keys: `used_memory` fluctuates by more than one key.
async fn bytes(server: &Server, limiter: &Limiter) {
    const MANY: usize = 200_000;
    let window = Duration::from_secs(600);
    let quotas = [
        ("token bucket", Quota::token_bucket(10, Rate::per_hour(6))),
        ("fixed window", Quota::fixed_window(10, window)),
        ("sliding counter", Quota::sliding_counter(10, window)),
        ("sliding log, one entry", Quota::sliding_log(10, window)),
    ];
    for (name, quota) in quotas {
        let gate = limiter.gate("bytes", quota);
        let before = memory(server);
        for first in (0..MANY).step_by(10_000) {
            let keys = (first..first + 10_000).map(|number| format!("user:{number:015}"));
            for decision in gate.check_many(keys).await {
                assert!(decision.unwrap().is_allowed());
            }
        }
        println!("{name}: {:.0} bytes for each key", (memory(server) - before) / MANY as f64);
    }
}

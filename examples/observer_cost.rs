//! Measures the cost of an observer on the hot paths: a lease spent by one thread and by a thread per core,
//! one key that 512 callers check in Redis, and one key that the deny cache denies. Runs without an observer
//! and with metrics, in turn.
//!
//! ```text
//! cargo run --release --features metrics --example observer_cost
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints")]

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tidegate::metrics::{Metrics, names};
use tidegate::{Event, Gate, Lease, Limiter, Observer, Quota, Rate};
use tidegate_testkit::Server;

const CALLERS: usize = 512;
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 9;
const OBSERVERS: [&str; 2] = ["none", "metrics"];

type Case<'a> = (&'a str, &'a dyn Fn(&Gates) -> Checks);
type Checks = Pin<Box<dyn Future<Output = f64>>>;

struct Gates {
    leased: Gate,
    hot: Gate,
    denied: Gate,
}

impl Gates {
    fn new(server: &Server, observer: usize) -> Self {
        let builder = Limiter::builder().url(server.url()).deadline(Duration::from_secs(10));
        let limiter = match observer {
            0 => builder,
            _ => builder.observer(Metrics::new()),
        };
        let limiter = limiter.namespace(&format!("cost-{observer}")).build().unwrap();
        let large = Quota::token_bucket(1 << 32, Rate::per_second(1 << 32));
        Self {
            leased: limiter.gate("leased", large).leased(Lease::new().max_units(1 << 31)),
            hot: limiter.gate("hot", large),
            denied: limiter.gate("denied", Quota::fixed_window(1, Duration::from_secs(3_600))),
        }
    }
}

/// Runs the recorder's upkeep like the exporter's own task, so that histograms do not grow without bound.
fn run_upkeep(recorder: PrometheusHandle) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            recorder.run_upkeep();
        }
    });
}

/// Returns checks per second over all threads.
fn spend(gate: &Gate, threads: usize) -> Checks {
    let (runtime, done, start) = (tokio::runtime::Handle::current(), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut spent = 0;
                while start.elapsed() < ROUND {
                    for _ in 0..100 {
                        match gate.try_check(black_box("key")) {
                            Some(decision) => spent += u64::from(black_box(decision).is_allowed()),
                            None => drop(runtime.block_on(gate.check("key")).unwrap()),
                        }
                    }
                }
                done.fetch_add(spent, Ordering::Relaxed);
            });
        }
    });
    let checks = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    Box::pin(async move { checks })
}

fn check(gate: &Gate) -> Checks {
    let gate = gate.clone();
    Box::pin(async move {
        let (start, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let callers = (0..CALLERS).map(|_| {
            let (gate, done) = (gate.clone(), done.clone());
            tokio::spawn(async move {
                let mut checks = 0;
                while start.elapsed() < ROUND {
                    checks += u64::from(gate.check("key").await.unwrap().limit() > 0);
                }
                done.fetch_add(checks, Ordering::Relaxed);
            })
        });
        futures_util::future::join_all(callers.collect::<Vec<_>>()).await;
        done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
    })
}

/// Returns the time in ns of one thread per count, when it counts the same decision repeatedly.
async fn count(gate: &Gate, metrics: &Metrics) -> f64 {
    const TIMES: u32 = 5_000_000;
    let decision = gate.check("key").await.unwrap();
    let start = Instant::now();
    for _ in 0..TIMES {
        metrics.on(black_box(&Event::Decided(&decision)));
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
}

fn median(rounds: &mut [f64]) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

#[tokio::main]
async fn main() {
    let server = Server::start().unwrap();
    let recorder = PrometheusBuilder::new().set_buckets(&names::SECONDS).unwrap().install_recorder().unwrap();
    let gates: Vec<_> = (0..OBSERVERS.len()).map(|observer| Gates::new(&server, observer)).collect();
    run_upkeep(recorder);
    let cores = std::thread::available_parallelism().unwrap().get();
    let counted = [Metrics::new(), Metrics::with_recorder(metrics::NoopRecorder)];
    let [counted, found] = counted.map(async |metrics| count(&gates[0].denied, &metrics).await);
    println!(
        "counting a decision, without a check: {:.0} ns, of which {:.0} ns to find its counter",
        counted.await,
        found.await
    );
    let cases: [Case<'_>; 4] = [
        ("a lease, one thread", &|gates| spend(&gates.leased, 1)),
        ("a lease, a thread per core", &|gates| spend(&gates.leased, cores)),
        ("one key, decided in Redis", &|gates| check(&gates.hot)),
        ("one key, denied by the deny cache", &|gates| check(&gates.denied)),
    ];
    println!("ns of this process's time per check, medians of {ROUNDS} rounds in turn; {cores} cores");
    for (name, case) in cases {
        let mut rounds = vec![Vec::new(); OBSERVERS.len()];
        // The first round warms up.
        for round in 0..=ROUNDS {
            // Rotates the order, so that no observer always runs after the same other one.
            for at in (0..OBSERVERS.len()).map(|at| (at + round) % OBSERVERS.len()) {
                let checks = case(&gates[at]).await;
                if round > 0 {
                    rounds[at].push(1e9 / checks);
                }
            }
        }
        for (observer, rounds) in OBSERVERS.iter().zip(&mut rounds) {
            println!("{name}: {observer} {:.0} ns", median(rounds));
        }
    }
}

//! The latency of checks while a peer is cut off.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tidegate::regions::{Mode, WhenCutOff};
use tidegate::{Gate, Quota, Rate, Source};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::fleet::{Fleet, quantile};
use super::{number, table};
use crate::rounds::median;
use crate::{Failure, Options, progress};

const TASKS: usize = 32;
const KEYS: u64 = 10_000;
/// A share of it has room soon after the cut.
const LIMIT: u64 = 1_000_000;
const GATES: [&str; 3] = ["plain", "replicated, share", "replicated, own"];

pub(super) async fn run(options: &Options) -> Result<(String, Json), Failure> {
    let rounds = options.rounds.unwrap_or(if options.quick { 2 } else { 7 });
    let seconds = options.seconds.unwrap_or(if options.quick { 2.0 } else { 5.0 });
    let fleet = Fleet::start().await?;
    let quota = Quota::token_bucket(LIMIT, Rate::per_second(LIMIT));
    let own = Mode::gossip().when_cut_off(WhenCutOff::Own);
    let gates = [
        fleet.plain[0].gate("plain", quota),
        fleet.gates("share", quota, Mode::gossip()).swap_remove(0),
        fleet.gates("own", quota, own).swap_remove(0),
    ];
    let mut results = Vec::new();
    for round in 0..rounds {
        for is_cut in [false, true] {
            progress(&format!("regions: cut, round {} of {rounds}", round + 1));
            fleet.cut(2, is_cut).await?;
            // The share has nothing available at the cut, and a limit after a second.
            sleep(Duration::from_secs(2)).await;
            for (gate, took) in GATES.iter().zip(latencies(&gates, seconds).await?) {
                results.push(json!({
                    "gate": gate, "is_cut": is_cut, "checks": took.len(),
                    "p50_us": quantile(&took, 0.5), "p99_us": quantile(&took, 0.99),
                }));
            }
        }
    }
    fleet.cut(2, false).await?;
    progress("");
    Ok((compared(&results), results.into()))
}

/// Returns the latencies of the checks of each gate, in µs. Each task makes a check of each gate in turn.
async fn latencies(gates: &[Gate; 3], seconds: f64) -> Result<[Vec<f64>; 3], Failure> {
    let ends = Instant::now() + Duration::from_secs_f64(seconds);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let gates = gates.clone();
        tasks.spawn(async move {
            let mut took: [Vec<f64>; 3] = Default::default();
            while Instant::now() < ends {
                for (gate, took) in gates.iter().zip(&mut took) {
                    sleep(Duration::from_millis(fastrand::u64(5..15))).await;
                    let (key, began) = (format!("user:{}", fastrand::u64(..KEYS)), Instant::now());
                    let decision = gate.check(&key).await?;
                    if decision.source() != Source::Redis || !decision.is_allowed() {
                        return Err(Failure::from(format!("not admitted by Redis: {decision:?}")));
                    }
                    took.push(began.elapsed().as_secs_f64() * 1e6);
                }
            }
            Ok(took)
        });
    }
    let mut all: [Vec<f64>; 3] = Default::default();
    for took in tasks.join_all().await {
        all.iter_mut().zip(took?).for_each(|(all, took)| all.extend(took));
    }
    Ok(all)
}

fn compared(rows: &[Json]) -> String {
    let row = |gate: &&str| {
        let all = |field: &str, is_cut: bool| -> Vec<f64> {
            let rows = rows.iter().filter(|row| row["gate"] == *gate && row["is_cut"] == is_cut);
            rows.map(|row| number(row, field)).collect()
        };
        let state = |is_cut| ["/p50_us", "/p99_us"].map(|field| format!("{:.0}", median(all(field, is_cut))));
        let ratio = |field: &str| {
            let pairs = all(field, true).into_iter().zip(all(field, false));
            format!("{:.2}", median(pairs.map(|(cut, healthy)| cut / healthy).collect()))
        };
        let ratios = ["/p50_us", "/p99_us"].map(ratio);
        let pairs = [state(false), state(true), ratios].map(|pair| pair.join(" / "));
        std::iter::once((*gate).to_owned()).chain(pairs).collect()
    };
    let head = ["p50 / p99 (µs), medians", "all peers healthy", "a peer cut off", "ratio"];
    table(&head, GATES.iter().map(row))
}

//! Load on many keys: what replication costs the servers, and whether it keeps up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tidegate::regions::Mode;
use tidegate::{Gate, Quota, Rate, Source};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::REGIONS;
use super::fleet::{Fleet, STREAM, quantile, staleness_ms};
use crate::rounds::median;
use crate::{Failure, Options, progress};

/// Checks per second in each region.
const RATE: u64 = 10_000;
/// Each is checked every ten seconds in each region.
const KEYS: u64 = 100_000;
const TASKS: usize = 500;
const LIMIT: u64 = 1_000_000;

pub(super) async fn run(options: &Options) -> Result<(String, Json), Failure> {
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 3 });
    let seconds = options.seconds.unwrap_or(if options.quick { 5.0 } else { 20.0 });
    let fleet = Fleet::start().await?;
    let quota = Quota::token_bucket(LIMIT, Rate::new(LIMIT, Duration::from_secs(86_400)));
    let plain: Vec<Gate> = fleet.plain.iter().map(|limiter| limiter.gate("plain", quota)).collect();
    let replicated = fleet.gates("replicated", quota, Mode::gossip());
    // Makes the keys.
    for gates in [&plain, &replicated] {
        checks(gates, KEYS as f64 / RATE as f64).await?;
    }
    settle(&fleet).await?;
    let mut results = Vec::new();
    for round in 0..rounds {
        progress(&format!("regions: load, round {} of {rounds}", round + 1));
        let of_plain = phase(&fleet, &plain, seconds).await?;
        let mut row = phase(&fleet, &replicated, seconds).await?;
        row["plain"] = of_plain;
        results.push(row);
    }
    progress("");
    let stream = fleet.targets[0].memory_usage(STREAM)?;
    let changes = (KEYS as f64 + rounds as f64 * seconds * RATE as f64).max(1.0);
    let results =
        json!({ "seconds": seconds, "rounds": results, "stream_bytes_per_key": stream as f64 / changes });
    Ok((table(&results), results))
}

/// Waits until all regions have counted all charges.
async fn settle(fleet: &Fleet) -> Result<(), Failure> {
    let ends = Instant::now() + Duration::from_secs(60);
    while fleet
        .statuses()
        .any(|status| status.outbox > 0 || status.peers.iter().any(|peer| !peer.lag.is_zero()))
    {
        if Instant::now() > ends {
            return Err("the replicators do not keep up".into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    // What was on its way.
    sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// Makes the checks in all regions for this time, and returns what they cost.
async fn phase(fleet: &Fleet, gates: &[Gate], seconds: f64) -> Result<Json, Failure> {
    let cpu = || fleet.targets.iter().map(|target| Ok(target.main_thread_cpu()?.as_secs_f64()));
    let cpu = || cpu().collect::<Result<Vec<f64>, Failure>>();
    let bytes = || (0..REGIONS).map(|region| fleet.bytes_out(region)).sum::<u64>();
    let applied = || fleet.statuses().flat_map(|status| status.peers).map(|peer| peer.applied).sum::<u64>();
    let (cpu_before, bytes_before, applied_before) = (cpu()?, bytes(), applied());
    let (entries, threads) = (fleet.calls("xadd")?, background_cpu());
    let (done, seen) = fleet.observed(checks(gates, seconds)).await;
    let (count, took, fallback) = done?;
    let left: u64 = fleet.statuses().map(|status| status.outbox).max().unwrap_or(0);
    settle(fleet).await?;
    let regions = REGIONS as f64;
    let used: f64 = cpu()?.iter().zip(cpu_before).map(|(now, before)| now - before).sum();
    let staleness = staleness_ms(&seen);
    let lag = seen.iter().flat_map(|status| &status.peers).map(|peer| peer.lag.as_secs_f64() * 1e3);
    Ok(json!({
        "checks_per_s": count as f64 / took / regions,
        "fallback": fallback,
        "core": used / took / regions,
        "us_per_check": used * 1e6 / count as f64,
        "background_us_per_check": (background_cpu() - threads) * 1e6 / count as f64,
        "applied_per_check": (applied() - applied_before) as f64 / count as f64,
        "entries_per_s": (fleet.calls("xadd")? - entries) as f64 / took / regions,
        "bytes_out_per_s": (bytes() - bytes_before) as f64 / took / regions,
        "staleness_ms": [quantile(&staleness, 0.5), quantile(&staleness, 0.99)],
        "lag_max_ms": lag.fold(0.0, f64::max),
        "outbox_max": seen.iter().map(|status| status.outbox).max(),
        "outbox_left": left,
    }))
}

/// Returns the checks, the seconds they took, and how many were decided without Redis.
async fn checks(gates: &[Gate], seconds: f64) -> Result<(u64, f64, u64), Failure> {
    let (begins, most) = (Instant::now(), (seconds * RATE as f64) as u64);
    let fallback = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for gate in gates {
        let next = Arc::new(AtomicU64::new(0));
        for _ in 0..TASKS {
            let (gate, next, fallback) = (gate.clone(), next.clone(), fallback.clone());
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= most {
                        return Ok::<_, Failure>(());
                    }
                    sleep_until(begins + Duration::from_micros(number * 1_000_000 / RATE)).await;
                    let decision = gate.check(&format!("user:{}", number % KEYS)).await?;
                    let is_usual = decision.source() == Source::Redis && decision.is_allowed();
                    fallback.fetch_add(u64::from(!is_usual), Ordering::Relaxed);
                }
            });
        }
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let took = begins.elapsed().as_secs_f64();
    Ok((most * gates.len() as u64, took, fallback.load(Ordering::Relaxed)))
}

/// Returns the CPU seconds of the limiters' background threads, which run the replicators. 0 if the system does not tell.
fn background_cpu() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let ticks = stats.filter(|stat| stat.contains("(tidegate)")).filter_map(|stat| {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
    });
    // A tick is 10 ms.
    ticks.sum::<u64>() as f64 / 100.0
}

fn table(results: &Json) -> String {
    let rounds = results["rounds"].as_array().cloned().unwrap_or_default();
    let of = |path: &str| median(rounds.iter().filter_map(|row| row.pointer(path)?.as_f64()).collect());
    let per_check = of("/us_per_check") - of("/plain/us_per_check");
    format!(
        "| {RATE} keys/s in each of {REGIONS} regions, {} rounds of {} s | without peers | replicated |\n\
         | --- | ---: | ---: |\n\
         | checks per second and region | {:.0} | {:.0} |\n\
         | not decided by Redis | {:.0} | {:.0} |\n\
         | part of a core, each Redis | {:.3} | {:.3} ({:.2} times) |\n\
         | µs of Redis per check | {:.2} | {:.2} ({per_check:.2} more, for {:.2} changes of others) |\n\
         | µs of the replicator's thread per check | {:.2} | {:.2} |\n\
         | entries per second and region | | {:.0} |\n\
         | bytes out per second and region | | {:.0} |\n\
         | bytes of the stream per key | | {:.1} |\n\
         | staleness p50 / p99 (ms) | | {:.0} / {:.0} |\n\
         | largest lag (ms); outbox, largest and at the end | | {:.0}; {:.0}, {:.0} |\n",
        rounds.len(),
        results["seconds"],
        of("/plain/checks_per_s"),
        of("/checks_per_s"),
        of("/plain/fallback"),
        of("/fallback"),
        of("/plain/core"),
        of("/core"),
        of("/core") / of("/plain/core"),
        of("/plain/us_per_check"),
        of("/us_per_check"),
        of("/applied_per_check"),
        of("/plain/background_us_per_check"),
        of("/background_us_per_check"),
        of("/entries_per_s"),
        of("/bytes_out_per_s"),
        results["stream_bytes_per_key"].as_f64().unwrap_or(f64::NAN),
        of("/staleness_ms/0"),
        of("/staleness_ms/1"),
        of("/lag_max_ms"),
        of("/outbox_max"),
        of("/outbox_left"),
    )
}

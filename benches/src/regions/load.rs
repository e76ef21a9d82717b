//! Load on many keys: what replication costs the servers, and whether it keeps up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tidegate::regions::Mode;
use tidegate::{Gate, Quota, Rate, Source};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::fleet::{Fleet, STREAM, quantile, staleness_ms};
use super::{REGIONS, number, table};
use crate::rounds::median;
use crate::{Failure, Options, progress};

/// Checks per second in each region. All of them are of distinct keys.
const RATES: [u64; 2] = [2_000, 10_000];
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
        checks(gates, RATES[1], KEYS as f64 / RATES[1] as f64).await?;
    }
    settle(&fleet).await?;
    let mut results = Vec::new();
    for round in 0..rounds {
        progress(&format!("regions: load, round {} of {rounds}", round + 1));
        for rate in RATES {
            let of_plain = phase(&fleet, &plain, rate, seconds).await?;
            let mut row = phase(&fleet, &replicated, rate, seconds).await?;
            row["rate"] = rate.into();
            row["plain"] = of_plain;
            results.push(row);
        }
    }
    progress("");
    let changes = KEYS as f64 + rounds as f64 * seconds * RATES.iter().sum::<u64>() as f64;
    let bytes = fleet.targets[0].memory_usage(STREAM)? as f64 / changes;
    let results = json!({ "seconds": seconds, "rounds": results, "stream_bytes_per_key": bytes });
    Ok((compared(&results), results))
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
async fn phase(fleet: &Fleet, gates: &[Gate], rate: u64, seconds: f64) -> Result<Json, Failure> {
    let cpu = || fleet.targets.iter().map(|target| Ok(target.main_thread_cpu()?.as_secs_f64()));
    let cpu = || cpu().collect::<Result<Vec<f64>, Failure>>();
    let bytes = || (0..REGIONS).map(|region| fleet.bytes_out(region)).sum::<u64>();
    let applied = || fleet.statuses().flat_map(|status| status.peers).map(|peer| peer.applied).sum::<u64>();
    let (cpu_before, bytes_before, applied_before) = (cpu()?, bytes(), applied());
    let (entries, threads) = (fleet.calls("xadd")?, client_cpu());
    let (done, seen) = fleet.observed(checks(gates, rate, seconds)).await;
    let (count, took, fallback) = done?;
    let left: u64 = fleet.statuses().map(|status| status.outbox).max().unwrap_or(0);
    settle(fleet).await?;
    let regions = REGIONS as f64;
    let used: f64 = cpu()?.iter().zip(cpu_before).map(|(now, before)| now - before).sum();
    let client: Vec<f64> = client_cpu().iter().zip(threads).map(|(now, before)| now - before).collect();
    let staleness = staleness_ms(&seen);
    let lag = seen.iter().flat_map(|status| &status.peers).map(|peer| peer.lag.as_secs_f64() * 1e3);
    Ok(json!({
        "checks_per_s": count as f64 / took / regions,
        "fallback": fallback,
        "core": used / took / regions,
        "us_per_check": used * 1e6 / count as f64,
        "client_us_per_check": client[0] * 1e6 / count as f64,
        "replicator_us_per_check": client[1] * 1e6 / count as f64,
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
async fn checks(gates: &[Gate], rate: u64, seconds: f64) -> Result<(u64, f64, u64), Failure> {
    let (begins, most) = (Instant::now(), (seconds * rate as f64) as u64);
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
                    sleep_until(begins + Duration::from_micros(number * 1_000_000 / rate)).await;
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

/// Returns the CPU seconds of this process, and of the limiters' background threads, which run the replicators. 0 if the
/// system does not tell.
fn client_cpu() -> [f64; 2] {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let mut seconds = [0.0; 2];
    for stat in stats {
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        // User and system time, in ticks of 10 ms.
        let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        seconds[0] += ticks as f64 / 100.0;
        seconds[1] += if stat.contains("(tidegate)") { ticks as f64 / 100.0 } else { 0.0 };
    }
    seconds
}

/// The rows of the table: name, field, unit, and whether limiters without peers have it.
const ROWS: [(&str, &str, f64, bool); 14] = [
    ("checks per second and region", "checks_per_s", 1.0, true),
    ("denied, or decided without Redis", "fallback", 1.0, true),
    ("% of a core, each Redis", "core", 100.0, true),
    ("µs of Redis per check", "us_per_check", 1.0, true),
    ("µs of the client's process per check", "client_us_per_check", 1.0, true),
    ("of these, the replicator's thread", "replicator_us_per_check", 1.0, true),
    ("charges of others per check", "applied_per_check", 1.0, false),
    ("entries per second and region", "entries_per_s", 1.0, false),
    ("kB out per second and region", "bytes_out_per_s", 0.001, false),
    ("staleness p50, ms", "staleness_ms/0", 1.0, false),
    ("staleness p99, ms", "staleness_ms/1", 1.0, false),
    ("largest lag, ms", "lag_max_ms", 1.0, false),
    ("largest outbox, keys", "outbox_max", 1.0, false),
    ("outbox at the end, keys", "outbox_left", 1.0, false),
];

fn compared(results: &Json) -> String {
    let rounds = results["rounds"].as_array();
    let rows = ROWS.map(|(name, field, unit, has_plain)| {
        let of = |rate: u64, at: String| {
            let rows = rounds.into_iter().flatten().filter(|row| row["rate"] == rate);
            format!("{:.1}", unit * median(rows.map(|row| number(row, &at)).collect()))
        };
        let plain = |rate| if has_plain { of(rate, format!("/plain/{field}")) } else { String::new() };
        let cells = RATES.iter().flat_map(|rate| [plain(*rate), of(*rate, format!("/{field}"))]);
        std::iter::once(name.to_owned()).chain(cells).collect()
    });
    let names = RATES.map(|rate| format!("{rate}/s without peers"));
    let text = table(&["", &names[0], "replicated", &names[1], "replicated"], rows);
    format!("{text}\nBytes of the stream per key: {:.1}\n", number(results, "/stream_bytes_per_key"))
}

//! Traffic around a limit: how much three regions admit beside one Redis with the same demand.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value as Json, json};
use tidegate::reference::{Item, Record, take};
use tidegate::regions::Mode;
use tidegate::{Gate, Quota, Rate, Source};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::fleet::{Fleet, one_way, quantile, staleness_ms};
use super::{REGIONS, number, table};
use crate::{Failure, Options, progress};

const LIMIT: u64 = 162_000;
const COST: u64 = 1_500;
/// Checks per limit.
const CHECKS: u64 = LIMIT / COST;
const WINDOW: Duration = Duration::from_secs(60);
const WINDOW_US: u64 = 60_000_000;
/// How long all demand stays in one region.
const FLIP_US: u64 = 10_000_000;
/// Bursts begin this long after a window does, and this long before it ends.
const AFTER_US: u64 = 5_000;
const BEFORE_US: u64 = 25_000;

#[derive(Debug, Clone, Copy)]
enum Demand {
    /// A limit per minute in each region.
    Even,
    /// Three limits per minute in one region.
    One,
    /// Three limits per minute in a region, then in the next one.
    Flip,
    /// Half a limit from each region on both sides of each edge of a window.
    Edge,
    /// A limit from each region at the beginning of each window.
    Sync,
}

const DEMANDS: [(&str, Demand); 5] = [
    ("even 3", Demand::Even),
    ("one region 3", Demand::One),
    ("flip 3", Demand::Flip),
    ("edge", Demand::Edge),
    ("sync", Demand::Sync),
];

/// A check that was decided.
struct Decided {
    at_us: u64,
    is_allowed: bool,
    /// Neither Redis nor a denial of Redis that the process remembers.
    is_fallback: bool,
}

pub(super) async fn run(options: &Options) -> Result<(String, Json), Failure> {
    let windows = if options.quick { 2 } else { 10 };
    let fleet = Fleet::start().await?;
    let begins = next_window(&fleet).await?;
    let (began, before) = (Instant::now(), [fleet.calls("xread")?, fleet.calls("xadd")?]);
    let mut rows = JoinSet::new();
    for (algorithm, quota) in quotas() {
        let gates = fleet.gates(algorithm, quota, Mode::gossip());
        for (name, demand) in DEMANDS {
            rows.spawn(row(gates.clone(), algorithm, quota, (name, demand), windows, begins));
        }
    }
    progress(&format!("regions: traffic of {windows} min begins in {:.0} s", (begins - began).as_secs_f64()));
    let (rows, seen) = fleet.observed(rows.join_all()).await;
    let rows = rows.into_iter().collect::<Result<Vec<Json>, _>>()?;
    let per_s = |at: usize, now: u64| (now - before[at]) as f64 / began.elapsed().as_secs_f64();
    let (reads, entries) = (per_s(0, fleet.calls("xread")?), per_s(1, fleet.calls("xadd")?));
    let staleness = staleness_ms(&seen);
    let cuts = seen.iter().flat_map(|status| &status.peers).filter(|peer| peer.is_cut_off).count();
    let probes = if options.quick { 15 } else { 60 };
    progress("regions: delays");
    let delays = [delays(&fleet, probes, false).await?, delays(&fleet, probes, true).await?].concat();
    progress("");
    let results = json!({
        "windows": windows, "rows": rows, "reads_per_s": reads, "entries_per_s": entries,
        "staleness_ms": [quantile(&staleness, 0.5), quantile(&staleness, 0.99)],
        "cut_off_samples": cuts, "delays_ms": delays,
    });
    Ok((tables(&results), results))
}

fn quotas() -> [(&'static str, Quota); 4] {
    [
        ("token_bucket", Quota::token_bucket(LIMIT, Rate::new(LIMIT, WINDOW))),
        ("fixed_window", Quota::fixed_window(LIMIT, WINDOW).aligned_to_clock()),
        ("sliding_counter", Quota::sliding_counter(LIMIT, WINDOW)),
        ("sliding_log", Quota::sliding_log(LIMIT, WINDOW)),
    ]
}

/// Returns when the next window begins, at least two seconds from now.
async fn next_window(fleet: &Fleet) -> Result<Instant, Failure> {
    let at = Instant::now();
    let now_us = fleet.plain[0].gate("clock", quotas()[0].1).peek("").await?.server_now_us();
    Ok(at + Duration::from_micros(2_000_000 + WINDOW_US - (now_us + 2_000_000) % WINDOW_US))
}

impl Demand {
    /// Returns when a region makes how many checks, in µs since the first window began.
    fn of(self, region: usize, windows: u64) -> Vec<(u64, u64)> {
        let starts = (0..windows).map(|window| window * WINDOW_US);
        match self {
            Self::Even => steady(windows, CHECKS, |_| true),
            Self::One => steady(windows, 3 * CHECKS, |_| region == 0),
            Self::Flip => steady(windows, 3 * CHECKS, |at| at / FLIP_US % REGIONS as u64 == region as u64),
            Self::Edge => starts
                .flat_map(|at| {
                    [(at + WINDOW_US - BEFORE_US, CHECKS / 2), (at + WINDOW_US + AFTER_US, CHECKS / 2)]
                })
                .collect(),
            Self::Sync => starts.map(|at| (at + AFTER_US, CHECKS)).collect(),
        }
    }
}

/// Checks at random times, `rate` per window on average.
fn steady(windows: u64, rate: u64, is_made: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
    let (mut rng, mut at) = (Rng::new(), 0.0);
    let mut next = || {
        at -= (1.0 - rng.f64()).ln() * (WINDOW_US / rate) as f64;
        at as u64
    };
    let times = std::iter::repeat_with(&mut next).take_while(|at| *at < windows * WINDOW_US);
    times.filter(|at| is_made(*at)).map(|at| (at, 1)).collect()
}

async fn row(
    gates: Vec<Gate>,
    algorithm: &'static str,
    quota: Quota,
    (name, demand): (&'static str, Demand),
    windows: u64,
    begins: Instant,
) -> Result<Json, Failure> {
    let mut regions = JoinSet::new();
    for (region, gate) in gates.into_iter().enumerate() {
        regions.spawn(traffic(gate, name, demand.of(region, windows), begins));
    }
    let decided = regions.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut row = judge(&quota, decided.into_iter().flatten().collect());
    row["algorithm"] = algorithm.into();
    row["demand"] = name.into();
    Ok(row)
}

async fn traffic(
    gate: Gate,
    key: &'static str,
    demand: Vec<(u64, u64)>,
    begins: Instant,
) -> Result<Vec<Decided>, Failure> {
    let mut checks = JoinSet::new();
    for (at_us, count) in demand {
        sleep_until(begins + Duration::from_micros(at_us)).await;
        for _ in 0..count {
            checks.spawn(gate.key(key).cost(COST).check());
        }
    }
    let decided = checks.join_all().await.into_iter().map(|decision| {
        let decision = decision?;
        let is_fallback = !matches!(decision.source(), Source::Redis | Source::DenyCache);
        Ok(Decided { at_us: decision.server_now_us(), is_allowed: decision.is_allowed(), is_fallback })
    });
    decided.collect()
}

/// Compares the decisions with those of one Redis on the same checks, and with the usage that one Redis would have if
/// it were charged with all that was admitted.
fn judge(quota: &Quota, mut decided: Vec<Decided>) -> Json {
    decided.sort_by_key(|check| check.at_us);
    let (mut one, mut pooled) = (Record::default(), Record::default());
    let (mut admitted_by_one, mut over) = (0, Vec::new());
    for check in &decided {
        let now = check.at_us;
        for record in [&mut one, &mut pooled].into_iter().filter(|record| record.has_expired(now)) {
            *record = Record::default();
        }
        admitted_by_one += take(&mut [Item::new(quota, &mut one, COST, None)], 1, now);
        if check.is_allowed {
            pooled.penalize(quota, COST, now);
            let algorithm = quota.kind().algorithm();
            let used = algorithm.used(algorithm.settle(&pooled.state, now), now);
            over.push(100.0 * (used / LIMIT as f64 - 1.0).max(0.0));
        }
    }
    let fallback = || decided.iter().filter(|check| check.is_fallback).map(|check| check.at_us);
    json!({
        "checks": decided.len(), "admitted": over.len(), "admitted_by_one": admitted_by_one,
        "fallback": fallback().count(),
        "fallback_us": [fallback().next(), fallback().next_back()],
        "over_max": over.iter().copied().fold(0.0, f64::max),
        "over_mean": over.iter().sum::<f64>() / over.len() as f64,
        "ratio": over.len() as f64 / admitted_by_one as f64,
    })
}

/// Returns the times from a charge until another region counts it, in ms: median and maximum by one-way latency. `is_busy`:
/// each region admits 100 other checks per second meanwhile.
async fn delays(fleet: &Fleet, probes: usize, is_busy: bool) -> Result<Vec<Json>, Failure> {
    let quota = Quota::token_bucket(1_000, Rate::new(1, Duration::from_secs(86_400)));
    let gates = fleet.gates("probe", quota, Mode::gossip());
    let mut others = JoinSet::new();
    for gate in if is_busy { gates.clone() } else { Vec::new() } {
        others.spawn(async move {
            while gate.check(&format!("other {}", fastrand::u64(..))).await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        });
    }
    let mut pairs = JoinSet::new();
    for origin in 0..REGIONS {
        for reader in (0..REGIONS).filter(|reader| *reader != origin) {
            let (from, to, way) = (gates[origin].clone(), gates[reader].clone(), one_way(origin, reader));
            let key = format!("{origin} to {reader}");
            pairs.spawn(async move {
                let mut took = Vec::new();
                for _ in 0..probes {
                    sleep(Duration::from_millis(fastrand::u64(200..600))).await;
                    let before = to.peek(&key).await?.remaining();
                    let _charged = from.check(&key).await?;
                    let began = Instant::now();
                    while to.peek(&key).await?.remaining() >= before {
                        sleep(Duration::from_millis(1)).await;
                    }
                    took.push(began.elapsed().as_secs_f64() * 1e3);
                }
                Ok::<_, Failure>((way, took))
            });
        }
    }
    let took = pairs.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let ways = [(0, 1), (0, 2), (1, 2)].map(|(here, there)| one_way(here, there));
    let of = |way: &Duration| -> Vec<f64> {
        took.iter().filter(|(other, _)| other == way).flat_map(|(_, took)| took.clone()).collect()
    };
    let row = |way: &Duration| {
        let took = of(way);
        json!({ "is_busy": is_busy, "one_way_ms": way.as_millis() as u64, "p50": quantile(&took, 0.5), "max": quantile(&took, 1.0) })
    };
    Ok(ways.iter().map(row).collect())
}

fn tables(results: &Json) -> String {
    let all = |name: &str| results[name].as_array().into_iter().flatten();
    let rows = quotas().map(|(algorithm, _)| {
        let cells = DEMANDS.iter().map(|(demand, _)| {
            let mut rows = all("rows");
            let row = rows.find(|row| row["algorithm"] == algorithm && row["demand"] == *demand);
            let of = |at| number(row.unwrap_or(&Json::Null), at);
            format!("{:.1} / {:.1}, {:.2}", of("/over_max"), of("/over_mean"), of("/ratio"))
        });
        std::iter::once(algorithm.to_owned()).chain(cells).collect()
    });
    let demands = DEMANDS.iter().map(|(demand, _)| *demand);
    let head: Vec<&str> = std::iter::once("over max / mean (%), ratio").chain(demands).collect();
    let rows = table(&head, rows);
    let fallback: f64 = all("rows").map(|row| number(row, "/fallback")).sum();
    let delays = all("delays_ms").map(|delay| {
        let others = if delay["is_busy"] == true { "100 per second" } else { "none" };
        let of = |at| format!("{:.0}", number(delay, at));
        vec![others.to_owned(), of("/one_way_ms"), of("/p50"), of("/max")]
    });
    let delays = table(&["other checks", "one way, ms", "until counted, p50 ms", "most"], delays);
    format!(
        "{rows}\n{} windows. Reads between regions per second: {:.1}, entries of streams: {:.1}. Staleness p50 / p99: {:.0} / \
         {:.0} ms. Decided without Redis: {fallback}; samples in which a peer was cut off: {}.\n\n{delays}",
        results["windows"],
        number(results, "/reads_per_s"),
        number(results, "/entries_per_s"),
        number(results, "/staleness_ms/0"),
        number(results, "/staleness_ms/1"),
        results["cut_off_samples"],
    )
}

//! One instance of a service: a process of its own, which asks on its parent's
//! word and reports what it was told. It ends when its stdin does, however the
//! parent ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate::{Error, Gate, Limiter};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, stdin, stdout};
use tokio::time::{MissedTickBehavior, interval};

use crate::Failure;
use crate::scenario::{KEYS, SCENARIOS, TASKS};

/// Long: on a busy machine a late answer is still an answer.
const DEADLINE: Duration = Duration::from_secs(10);
const PROGRESS: Duration = Duration::from_millis(100);

/// From the parent, a line each: `Connect` once, then `Ask` for each scenario.
/// Over stdin, since arguments can be seen by others and a URL may hold a
/// password.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Connect { url: String, namespace: String },
    Ask { scenario: usize, millis: u64 },
}

/// To the parent, a line each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    Connected,
    Failed(String),
    Progress { offered: u64, allowed: u64 },
    Report(Report),
}

/// What one instance was told, in one scenario.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) failed: u64,
    pub(crate) first_error: Option<String>,
    /// How many decisions took so many µs.
    pub(crate) took_us: Vec<(u64, u64)>,
    /// By key, the server's clock at each decision.
    pub(crate) instants_us: Vec<Vec<u64>>,
}

pub(crate) async fn run() -> Result<(), Failure> {
    let mut orders = BufReader::new(stdin()).lines();
    let mut limiter: Option<Limiter> = None;
    while let Some(order) = orders.next_line().await? {
        match (serde_json::from_str(&order)?, &limiter) {
            (Order::Connect { url, namespace }, _) => {
                let opened = connect(&url, &namespace).await;
                say(&opened.as_ref().map_or_else(|e| Line::Failed(e.to_string()), |_| Line::Connected))
                    .await?;
                limiter = Some(opened?);
            }
            (Order::Ask { scenario, millis }, Some(limiter)) => {
                let scenario = SCENARIOS[scenario];
                let gate = limiter.gate(scenario.name, scenario.quota);
                tokio::select! {
                    report = ask(&gate, Duration::from_millis(millis)) => say(&Line::Report(report?)).await?,
                    // No order comes now: only the end of the parent.
                    _ = orders.next_line() => return Ok(()),
                }
            }
            (Order::Ask { .. }, None) => return Err("asked before connected".into()),
        }
    }
    Ok(())
}

pub(crate) async fn connect(url: &str, namespace: &str) -> Result<Limiter, Error> {
    let limiter = Limiter::builder()
        .url(url)
        .namespace(namespace)
        .deadline(DEADLINE)
        // So that every ask is Redis's to decide: denials would be answered here.
        .deny_cache(Duration::ZERO)
        .build()?;
    limiter.ready().await?;
    Ok(limiter)
}

async fn say(line: &Line) -> Result<(), Failure> {
    let mut out = stdout();
    out.write_all((serde_json::to_string(line)? + "\n").as_bytes()).await?;
    Ok(out.flush().await?)
}

#[derive(Default)]
struct Counts {
    offered: AtomicU64,
    allowed: AtomicU64,
}

/// All tasks ask as fast as they are answered, each for one key after the other.
async fn ask(gate: &Gate, duration: Duration) -> Result<Report, Failure> {
    let end = Instant::now() + duration;
    let counts = Arc::new(Counts::default());
    let tasks: Vec<_> =
        (0..TASKS).map(|task| tokio::spawn(ask_in_turn(gate.clone(), task, end, counts.clone()))).collect();

    let mut ticks = interval(PROGRESS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while Instant::now() < end {
        ticks.tick().await;
        let (offered, allowed) = (counts.offered.load(Relaxed), counts.allowed.load(Relaxed));
        say(&Line::Progress { offered, allowed }).await?;
    }
    let mut report = Report { instants_us: vec![Vec::new(); KEYS.len()], ..Report::default() };
    let mut took = Histogram::<u64>::new(3)?;
    for task in tasks {
        let told = task.await??;
        report.allowed += told.allowed;
        report.denied += told.denied;
        report.failed += told.failed;
        report.first_error = report.first_error.or(told.first_error);
        took.add(told.took)?;
        for (all, own) in report.instants_us.iter_mut().zip(told.instants_us) {
            all.extend(own);
        }
    }
    report.took_us =
        took.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
    Ok(report)
}

/// What one task was told.
struct Told {
    allowed: u64,
    denied: u64,
    failed: u64,
    first_error: Option<String>,
    took: Histogram<u64>,
    instants_us: [Vec<u64>; KEYS.len()],
}

async fn ask_in_turn(gate: Gate, first: usize, end: Instant, counts: Arc<Counts>) -> Result<Told, Failure> {
    let mut told = Told {
        allowed: 0,
        denied: 0,
        failed: 0,
        first_error: None,
        took: Histogram::new(3)?,
        instants_us: Default::default(),
    };
    for key in (0..KEYS.len()).cycle().skip(first) {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let decided = gate.check(KEYS[key]).await;
        told.took.record(start.elapsed().as_micros() as u64)?;
        counts.offered.fetch_add(1, Relaxed);
        match decided {
            Ok(decision) => {
                told.instants_us[key].push(decision.server_now_us());
                if decision.is_allowed() {
                    told.allowed += 1;
                    counts.allowed.fetch_add(1, Relaxed);
                } else {
                    told.denied += 1;
                }
            }
            Err(error) => {
                told.failed += 1;
                told.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
    Ok(told)
}

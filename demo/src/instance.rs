//! One instance of a service: a separate process that runs checks on its parent's instruction and reports the
//! decisions. It ends when its stdin is closed, however the parent ended.

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

/// Long, so that late replies on a busy machine still count.
const DEADLINE: Duration = Duration::from_secs(10);
const PROGRESS: Duration = Duration::from_millis(100);

/// An instruction of the parent, one per line: `Connect` once, then `Check` for each scenario. It is sent
/// over stdin, since other users can read arguments, and the URL may hold a password.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Instruction {
    Connect { url: String, namespace: String },
    Check { scenario: usize, millis: u64 },
}

/// A message to the parent, one per line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    Connected,
    Failed(String),
    Progress { offered: u64, allowed: u64 },
    Report(Report),
}

/// The decisions of one instance in one scenario.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) failed: u64,
    pub(crate) first_error: Option<String>,
    /// Pairs of a duration in µs and the number of decisions that took it.
    pub(crate) took_us: Vec<(u64, u64)>,
    /// The server's time of each decision, by key.
    pub(crate) instants_us: Vec<Vec<u64>>,
}

pub(crate) async fn run() -> Result<(), Failure> {
    let mut instructions = BufReader::new(stdin()).lines();
    let mut limiter: Option<Limiter> = None;
    while let Some(instruction) = instructions.next_line().await? {
        match (serde_json::from_str(&instruction)?, &limiter) {
            (Instruction::Connect { url, namespace }, _) => {
                let opened = connect(&url, &namespace).await;
                let message = opened
                    .as_ref()
                    .map_or_else(|error| Message::Failed(error.to_string()), |_| Message::Connected);
                send(&message).await?;
                limiter = Some(opened?);
            }
            (Instruction::Check { scenario, millis }, Some(limiter)) => {
                let scenario = SCENARIOS[scenario];
                let gate = limiter.gate(scenario.name, scenario.quota);
                tokio::select! {
                    report = check(&gate, Duration::from_millis(millis)) => {
                        send(&Message::Report(report?)).await?;
                    }
                    // The parent sends no instruction now, so this is the parent's end.
                    _ = instructions.next_line() => return Ok(()),
                }
            }
            (Instruction::Check { .. }, None) => return Err("received Check before Connect".into()),
        }
    }
    Ok(())
}

pub(crate) async fn connect(url: &str, namespace: &str) -> Result<Limiter, Error> {
    let limiter = Limiter::builder()
        .url(url)
        .namespace(namespace)
        .deadline(DEADLINE)
        // So that Redis decides every check: the deny cache would answer denials in this process.
        .deny_cache(Duration::ZERO)
        .publish_figures(true)
        .build()?;
    limiter.ready().await?;
    Ok(limiter)
}

async fn send(message: &Message) -> Result<(), Failure> {
    let mut out = stdout();
    out.write_all((serde_json::to_string(message)? + "\n").as_bytes()).await?;
    Ok(out.flush().await?)
}

#[derive(Default)]
struct Counts {
    offered: AtomicU64,
    allowed: AtomicU64,
}

/// Runs all tasks. Each task checks one key after the other, without a pause.
async fn check(gate: &Gate, duration: Duration) -> Result<Report, Failure> {
    let end = Instant::now() + duration;
    let counts = Arc::new(Counts::default());
    let tasks: Vec<_> =
        (0..TASKS).map(|task| tokio::spawn(check_in_turn(gate.clone(), task, end, counts.clone()))).collect();

    let mut ticks = interval(PROGRESS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while Instant::now() < end {
        ticks.tick().await;
        let (offered, allowed) = (counts.offered.load(Relaxed), counts.allowed.load(Relaxed));
        send(&Message::Progress { offered, allowed }).await?;
    }
    let mut report = Report { instants_us: vec![Vec::new(); KEYS.len()], ..Report::default() };
    let mut took = Histogram::<u64>::new(3)?;
    for task in tasks {
        let counted = task.await??;
        report.allowed += counted.allowed;
        report.denied += counted.denied;
        report.failed += counted.failed;
        report.first_error = report.first_error.or(counted.first_error);
        took.add(counted.took)?;
        for (all, own) in report.instants_us.iter_mut().zip(counted.instants_us) {
            all.extend(own);
        }
    }
    report.took_us =
        took.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
    Ok(report)
}

/// The decisions of one task.
struct TaskReport {
    allowed: u64,
    denied: u64,
    failed: u64,
    first_error: Option<String>,
    took: Histogram<u64>,
    instants_us: [Vec<u64>; KEYS.len()],
}

async fn check_in_turn(
    gate: Gate,
    first: usize,
    end: Instant,
    counts: Arc<Counts>,
) -> Result<TaskReport, Failure> {
    let mut report = TaskReport {
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
        report.took.record(start.elapsed().as_micros() as u64)?;
        counts.offered.fetch_add(1, Relaxed);
        match decided {
            Ok(decision) => {
                report.instants_us[key].push(decision.server_now_us());
                if decision.is_allowed() {
                    report.allowed += 1;
                    counts.allowed.fetch_add(1, Relaxed);
                } else {
                    report.denied += 1;
                }
            }
            Err(error) => {
                report.failed += 1;
                report.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
    Ok(report)
}

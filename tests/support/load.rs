//! A process under steady load that writes down each ask: what it was told, when, and how late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::Rng;
use serde::{Deserialize, Serialize};
use tidegate::internals::Answer;
use tidegate::{Decision, Error, Gate, Limiter, OnFailure, Quota};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::stalls::Stalls;

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub url: String,
    pub namespace: String,
    /// Whose gates: [`Job::run`] is given them.
    pub gates: String,
    pub one_by_one: bool,
    pub on_failure: Fallback,
    pub deadline_ms: u64,
    /// Between a task's asks.
    pub pause_ms: u64,
}

/// What the limiter is told to do without Redis. `Local` joins them when it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    Error,
    Open,
    Closed,
}

impl Fallback {
    fn setting(self) -> OnFailure {
        match self {
            Self::Error => OnFailure::Error,
            Self::Open => OnFailure::Open,
            Self::Closed => OnFailure::Closed,
        }
    }
}

/// One ask and what came of it. Times are microseconds since 1970, by one clock for all processes of
/// this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// Which of the job's gates.
    pub gate: usize,
    pub called_us: u64,
    pub returned_us: u64,
    /// How long of this the process was not let run.
    pub stalled_us: u64,
    /// Who decided; "error" if nobody did.
    pub source: String,
    pub allowed: bool,
    /// The server's clock; 0 where it did not decide.
    pub now_us: u64,
    pub remaining: u64,
    pub retry_after_us: u64,
    pub reset_after_us: u64,
    pub delay_us: u64,
}

impl Asked {
    /// As it would be, had the process been let run.
    pub fn latency_us(&self) -> u64 {
        (self.returned_us - self.called_us).saturating_sub(self.stalled_us)
    }

    pub fn is_redis(&self) -> bool {
        self.source == "redis"
    }

    /// Redis did not answer it, nor did what this process remembers.
    pub fn is_failure(&self) -> bool {
        !matches!(self.source.as_str(), "redis" | "deny_cache" | "lease")
    }

    pub fn answer(&self) -> Answer {
        let &Self { allowed, remaining, retry_after_us, reset_after_us, delay_us, .. } = self;
        Answer { allowed, remaining, retry_after_us, reset_after_us, delay_us }
    }
}

/// All that a process asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub asked: Vec<Asked>,
    /// How often each error was told.
    pub errors: BTreeMap<String, u64>,
    pub left: Left,
}

/// What is there when all asks have been answered: one connection, and the task that reads from it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Left {
    pub tasks: usize,
    /// More than before the first ask. 0 where the system does not say.
    pub files: usize,
}

impl Left {
    pub const MOST: Self = Self { tasks: 2, files: 2 };

    pub fn is_little(self) -> bool {
        self.tasks <= Self::MOST.tasks && self.files <= Self::MOST.files
    }

    fn since(files_before: usize) -> Self {
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        Self { tasks, files: files().saturating_sub(files_before) }
    }
}

fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// The clock that all processes of this machine share.
pub fn now_us() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "one clock for several processes; no decision is made by it"
    )]
    let now = SystemTime::now();
    u64::try_from(now.duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// The same, told from an `Instant`, which nobody sets while a test runs.
#[derive(Clone, Copy)]
struct Anchor(u64, Instant);

impl Anchor {
    fn new() -> Self {
        // The two readings that were closest.
        let pairs = (0..100).map(|_| {
            let before = Instant::now();
            let now = now_us();
            (before.elapsed(), Self(now, before))
        });
        pairs.min_by_key(|(apart, _)| *apart).unwrap().1
    }

    fn at(self, instant: Instant) -> u64 {
        self.0 + u64::try_from((instant - self.1).as_micros()).unwrap()
    }
}

impl Job {
    fn limiter(&self) -> Limiter {
        let builder = Limiter::builder()
            .url(&self.url)
            .namespace(&self.namespace)
            .deadline(Duration::from_millis(self.deadline_ms))
            .on_failure(self.on_failure.setting());
        let builder = if self.one_by_one { builder.batching(false) } else { builder };
        // Histories are of what Redis decided.
        let remembers = self.gates == "chaos" && !self.one_by_one;
        let builder = if remembers { builder } else { builder.deny_cache(Duration::ZERO) };
        builder.build().unwrap()
    }

    /// Asks from the first line of the standard input to the second; `tasks` for each gate. Ends with
    /// its input.
    pub async fn run(&self, gates: &[(&'static str, Quota, usize)]) {
        let limiter = self.limiter();
        let anchor = Anchor::new();
        let stalls = Stalls::watch();
        let files_before = files();
        say(&serde_json::json!({"ready": true}));
        let mut orders = BufReader::new(tokio::io::stdin()).lines();
        if orders.next_line().await.unwrap().is_none() {
            return;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for (index, &(name, quota, count)) in gates.iter().enumerate() {
            for _ in 0..count {
                let pause = Duration::from_millis(self.pause_ms);
                let asking = ask(index, limiter.gate(name, quota), pause, anchor, is_over.clone());
                tasks.push(tokio::spawn(asking));
            }
        }
        if orders.next_line().await.unwrap().is_none() {
            return;
        }
        is_over.store(true, Ordering::SeqCst);
        let mut report = Report::default();
        for task in tasks {
            let (asked, errors) = task.await.unwrap();
            report.asked.extend(asked);
            for (text, count) in errors {
                *report.errors.entry(text).or_default() += count;
            }
        }
        // An attempt at a connection may go on for 5 s; and what held up the last asks is known when the
        // watch has looked once more.
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            report.left = Left::since(files_before);
            if report.left.is_little() {
                break;
            }
        }
        let stalls = stalls.end();
        for asked in &mut report.asked {
            asked.stalled_us = stalls.within(asked.called_us, asked.returned_us, |at| anchor.at(at));
        }
        say(&serde_json::to_value(&report).unwrap());
        let _ = orders.next_line().await;
    }
}

#[expect(clippy::print_stdout, reason = "how a process answers")]
fn say(line: &serde_json::Value) {
    println!("\n{line}");
}

async fn ask(
    index: usize,
    gate: Gate,
    pause: Duration,
    anchor: Anchor,
    is_over: Arc<AtomicBool>,
) -> (Vec<Asked>, BTreeMap<String, u64>) {
    let (mut asked, mut errors) = (Vec::new(), BTreeMap::new());
    while !is_over.load(Ordering::SeqCst) {
        let called = Instant::now();
        let result = gate.check("hot").await;
        let returned = Instant::now();
        if let Err(error) = &result {
            *errors.entry(error.to_string()).or_default() += 1;
        }
        asked.push(record(index, anchor.at(called), anchor.at(returned), &result));
        // Not all at once.
        let pause = pause.mul_f64(rand::rng().random_range(0.5..1.5));
        tokio::time::sleep(pause).await;
    }
    (asked, errors)
}

fn record(gate: usize, called_us: u64, returned_us: u64, result: &Result<Decision, Error>) -> Asked {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap();
    let told = result.as_ref().ok();
    let time = |of: fn(&Decision) -> Duration| told.map_or(0, |decision| micros(of(decision)));
    Asked {
        gate,
        called_us,
        returned_us,
        stalled_us: 0,
        source: told.map_or("error", |decision| decision.source().as_str()).to_owned(),
        allowed: told.is_some_and(Decision::is_allowed),
        now_us: told.map_or(0, Decision::server_now_us),
        remaining: told.map_or(0, Decision::remaining),
        retry_after_us: time(Decision::retry_after),
        reset_after_us: time(Decision::reset_after),
        delay_us: time(Decision::delay),
    }
}

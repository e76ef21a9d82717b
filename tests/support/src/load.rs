//! A process under steady load. It records each check: the decision, the times, and how late it was.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::Rng;
use serde::{Deserialize, Serialize};
use tidegate::reference::Answer;
use tidegate::{Builder, Decision, Error, Gate, Limiter, OnFailure, Quota};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::stalls::Stalls;

/// The task of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub to: To,
    pub namespace: String,
    /// The name of the set of gates that the test passes to [`Job::run`].
    pub gates: String,
    pub one_by_one: bool,
    pub on_failure: Fallback,
    /// Number of processes that share the quotas.
    pub instances: u64,
    /// Number of connections that a limiter may hold. Each has a task.
    pub connections: usize,
    pub deadline_ms: u64,
    /// Mean pause of a task between two checks.
    pub pause_ms: u64,
}

/// The address of Redis.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum To {
    Url(String),
    Sentinels(Vec<String>, String),
    Cluster(Vec<String>),
}

impl To {
    fn builder(&self) -> Builder {
        // They would fill the output.
        let builder = Limiter::builder().stderr_warnings(false);
        match self {
            Self::Url(url) => builder.url(url),
            Self::Sentinels(urls, name) => builder.sentinel(urls.iter().map(String::as_str), name),
            Self::Cluster(urls) => builder.cluster(urls),
        }
    }
}

/// The failure policy of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    Local,
    Error,
    Open,
    Closed,
}

impl Fallback {
    fn setting(self) -> OnFailure {
        match self {
            Self::Local => OnFailure::Local,
            Self::Error => OnFailure::Error,
            Self::Open => OnFailure::Open,
            Self::Closed => OnFailure::Closed,
        }
    }
}

/// One check and its result. Times are microseconds since 1970, by one clock for all processes of this
/// machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Checked {
    /// Index into the job's gates.
    pub gate: usize,
    /// The number of the key: 0, or for fresh keys the time since 1970 in units of [`FRESH`].
    pub key: u64,
    pub called_us: u64,
    pub returned_us: u64,
    /// The part of this time in which the process was not scheduled.
    pub stalled_us: u64,
    /// The source of the decision, or "error" if there was none.
    pub source: Cow<'static, str>,
    pub allowed: bool,
    /// The server's clock; 0 if the server did not decide.
    pub now_us: u64,
    pub remaining: u64,
    pub retry_after_us: u64,
    pub reset_after_us: u64,
    pub delay_us: u64,
}

impl Checked {
    /// Returns the latency without the time in which the process was not scheduled.
    pub fn latency_us(&self) -> u64 {
        self.elapsed_us().saturating_sub(self.stalled_us)
    }

    /// Returns the latency that the caller observed.
    pub fn elapsed_us(&self) -> u64 {
        self.returned_us - self.called_us
    }

    pub fn is_redis(&self) -> bool {
        self.source == "redis"
    }

    pub fn is_local(&self) -> bool {
        self.source == "local"
    }

    /// Returns whether neither Redis nor this process's cache or lease decided.
    pub fn is_failure(&self) -> bool {
        !matches!(&*self.source, "redis" | "deny_cache" | "lease")
    }

    pub fn answer(&self) -> Answer {
        let &Self { allowed, remaining, retry_after_us, reset_after_us, delay_us, .. } = self;
        Answer { allowed, remaining, retry_after_us, reset_after_us, delay_us, is_blocked: false }
    }
}

/// All checks of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub checks: Vec<Checked>,
    /// The number of occurrences of each error text.
    pub errors: BTreeMap<String, u64>,
    /// Before the first check.
    pub first: Holdings,
    /// When the test sent its second line.
    pub before: Holdings,
    /// After the last check.
    pub after: Holdings,
    /// The limiter's view of its server at the end.
    pub health: String,
}

impl Report {
    /// Returns whether the process holds only a few more tasks and files than before its first check. Allowed
    /// are `connections` more, and the background thread, which starts with the first check.
    pub fn is_little_left(&self, connections: usize) -> bool {
        let allowed = |before| before + connections;
        self.after.tasks <= allowed(self.first.tasks)
            && self.after.files <= allowed(self.first.files) + BACKGROUND_FILES
    }

    /// Returns the memory growth since the test sent its second line.
    pub fn grown_kb(&self) -> u64 {
        self.after.memory_kb.saturating_sub(self.before.memory_kb)
    }
}

/// Open files of the runtimes of a limiter's two threads: two for polling, one to wake it and one for
/// signals each.
const BACKGROUND_FILES: usize = 2 * 4;

/// The resources of a process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Holdings {
    pub tasks: usize,
    /// Includes sockets. Files and memory are 0 on systems without /proc.
    pub files: usize,
    pub memory_kb: u64,
}

impl Holdings {
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        Self {
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            files: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            memory_kb: memory.map_or(0, |memory| memory.parse().unwrap()),
        }
    }
}

/// Returns the time by the clock that all processes of this machine share.
pub fn now_us() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "one clock for several processes; no decision is made by it"
    )]
    let now = SystemTime::now();
    u64::try_from(now.duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// The same clock, computed from an `Instant`. Clock adjustments during a test do not affect it.
#[derive(Clone, Copy)]
struct Anchor(u64, Instant);

impl Anchor {
    fn new() -> Self {
        // Takes the pair of readings with the least time between them.
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
    pub fn limiter(&self) -> Limiter {
        let builder = self.to.builder();
        let builder = builder
            .namespace(&self.namespace)
            .deadline(Duration::from_millis(self.deadline_ms))
            .instances(self.instances)
            .on_failure(self.on_failure.setting());
        let builder = if self.one_by_one { builder.batching(false) } else { builder };
        // A recorded history must contain decisions of Redis only.
        let has_deny_cache = self.gates == "chaos" && !self.one_by_one;
        let builder = if has_deny_cache { builder } else { builder.deny_cache(Duration::ZERO) };
        builder.build().unwrap()
    }

    /// Runs checks between the first and the third line of standard input, with `tasks` for each gate. At the
    /// second line it records its resources. Returns when its input ends.
    pub async fn run<Name: AsRef<str>>(&self, gates: &[(Name, Quota, usize)]) {
        let limiter = self.limiter();
        let anchor = Anchor::new();
        let stalls = Stalls::watch(&["self".to_owned()]);
        let mut report = Report { first: Holdings::now(), ..Report::default() };
        send(&serde_json::json!({"ready": true}));
        let mut commands = BufReader::new(tokio::io::stdin()).lines();
        if commands.next_line().await.unwrap().is_none() {
            return;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for (index, (name, quota, count)) in gates.iter().enumerate() {
            for _ in 0..*count {
                let task = CheckTask {
                    index,
                    gate: limiter.gate(name.as_ref(), *quota),
                    is_fresh: name.as_ref().starts_with("fresh"),
                    pause: Duration::from_millis(self.pause_ms),
                    anchor,
                };
                tasks.push(tokio::spawn(task.run_until(is_over.clone())));
            }
        }
        if commands.next_line().await.unwrap().is_none() {
            return;
        }
        report.before = Holdings::now();
        if commands.next_line().await.unwrap().is_none() {
            return;
        }
        is_over.store(true, Ordering::SeqCst);
        for task in tasks {
            let (checks, errors) = task.await.unwrap();
            report.checks.extend(checks);
            for (text, count) in errors {
                *report.errors.entry(text).or_default() += count;
            }
        }
        // A connection attempt may still be running. The stall of the last checks is known only after the
        // watch thread has sampled once more.
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            report.after = Holdings::now();
            if report.is_little_left(self.connections) {
                break;
            }
        }
        report.health = limiter.health().await.to_string();
        let stalls = stalls.end();
        for check in &mut report.checks {
            check.stalled_us = stalls.within(check.called_us, check.returned_us, |at| anchor.at(at));
        }
        send(&serde_json::to_value(&report).unwrap());
        let _ = commands.next_line().await;
    }
}

#[expect(clippy::print_stdout, reason = "a process reports on its standard output")]
fn send(value: &serde_json::Value) {
    println!("\n{value}");
}

/// How long one fresh key is checked.
pub const FRESH: Duration = Duration::from_millis(500);

/// Checks per task that are recorded without allocating more memory than at the start.
const CAPACITY: usize = 4_000;

/// The work of one task.
struct CheckTask {
    index: usize,
    gate: Gate,
    is_fresh: bool,
    pause: Duration,
    anchor: Anchor,
}

impl CheckTask {
    async fn run_until(self, is_over: Arc<AtomicBool>) -> (Vec<Checked>, BTreeMap<String, u64>) {
        let mut checks = vec![Checked::default(); CAPACITY];
        checks.clear();
        let mut errors = BTreeMap::new();
        while !is_over.load(Ordering::SeqCst) {
            let called = Instant::now();
            let called_us = self.anchor.at(called);
            let key = if self.is_fresh { called_us / FRESH.as_micros() as u64 } else { 0 };
            let result = self.gate.check(key.to_string()).await;
            let returned_us = self.anchor.at(Instant::now());
            if let Err(error) = &result {
                *errors.entry(error.to_string()).or_default() += 1;
            }
            let check = record(&result);
            checks.push(Checked { gate: self.index, key, called_us, returned_us, ..check });
            // Jitter keeps the tasks from checking at the same time.
            let pause = self.pause.mul_f64(rand::rng().random_range(0.5..1.5));
            tokio::time::sleep(pause).await;
        }
        (checks, errors)
    }
}

fn record(result: &Result<Decision, Error>) -> Checked {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap();
    let decision = result.as_ref().ok();
    let time = |of: fn(&Decision) -> Duration| decision.map_or(0, |decision| micros(of(decision)));
    Checked {
        source: decision.map_or("error", |decision| decision.source().as_str()).into(),
        allowed: decision.is_some_and(Decision::is_allowed),
        now_us: decision.map_or(0, Decision::server_now_us),
        remaining: decision.map_or(0, Decision::remaining),
        retry_after_us: time(Decision::retry_after),
        reset_after_us: time(Decision::reset_after),
        delay_us: time(Decision::delay),
        ..Checked::default()
    }
}

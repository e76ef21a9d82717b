//! Ten million distinct keys: does it get slower, or this process larger, the more there are?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::{Gate, Quota, Rate};
use tokio::runtime::Runtime;

use crate::server::Target;
use crate::subjects::tidegate_limiter;
use crate::{Failure, progress};

/// Used for ten minutes by a single ask, so that no key goes while others come.
const QUOTA: Quota = Quota::token_bucket(100_000, Rate::new(1, Duration::from_secs(600)));

const TASKS: usize = 512;

/// After a slice of the keys.
#[derive(Debug)]
pub(crate) struct Slice {
    keys: u64,
    per_second: f64,
    /// Of this process.
    resident: Option<u64>,
    /// Of Redis, as it says itself.
    used_memory: u64,
    /// What Redis's thread did for a check, which other work on the machine disturbs less.
    redis_us: f64,
}

pub(crate) fn run(
    runtime: &Runtime,
    target: &Target,
    count: u64,
    slices: u64,
) -> Result<Vec<Slice>, Failure> {
    let limiter = tidegate_limiter(target.url())?;
    let gate = limiter.gate("keys", QUOTA);
    runtime.block_on(limiter.ready())?;
    (0..slices)
        .map(|slice| {
            let (first, end) = (count * slice / slices, count * (slice + 1) / slices);
            progress(&format!("keys: {first} of {count}"));
            let before = target.begin()?;
            let begun = Instant::now();
            runtime.block_on(ask(&gate, first, end))?;
            let seconds = begun.elapsed().as_secs_f64();
            let asked = (end - first) as f64;
            Ok(Slice {
                keys: end,
                per_second: asked / seconds,
                resident: resident(),
                used_memory: target.used_memory()?,
                redis_us: target.end(&before)?.cpu_us / asked,
            })
        })
        .collect()
}

async fn ask(gate: &Gate, first: u64, end: u64) -> Result<(), Failure> {
    let next = Arc::new(AtomicU64::new(first));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (gate, next) = (gate.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return Ok::<_, Failure>(());
                    }
                    if !gate.check(format!("user:{number}")).await?.is_allowed() {
                        return Err("a key that was never asked for was denied".into());
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// In bytes, where the system tells it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

impl Slice {
    pub(crate) fn cells(&self) -> Vec<String> {
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        vec![
            crate::report::thousands(self.keys as f64),
            crate::report::thousands(self.per_second),
            format!("{:.2}", self.redis_us),
            self.resident.map_or_else(|| "?".to_owned(), mb),
            mb(self.used_memory),
        ]
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "keys": self.keys,
            "checks_per_s": self.per_second.round(),
            "redis_cpu_us_per_check": crate::report::rounded(self.redis_us),
            "resident_bytes": self.resident,
            "redis_used_memory_bytes": self.used_memory,
        })
    }
}

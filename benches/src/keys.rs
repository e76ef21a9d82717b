//! Checks ten million distinct keys, and measures whether the rate drops or this process grows with their
//! number. The flat script on a server of its own is the baseline, since Redis itself slows down as it
//! touches more memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::case::Case;
use crate::report::{rounded, thousands};
use crate::server::Target;
use crate::subjects::{Multiplexed, Subject, Tidegate};
use crate::{Failure, progress};

/// The results of one of the two subjects for a slice of the keys.
#[derive(Debug)]
struct Pace {
    per_second: f64,
    /// CPU time of Redis's main thread per check. Other load on the machine affects it less than the rate.
    redis_us: f64,
    /// `used_memory` of Redis.
    used_memory: u64,
}

/// The results after a slice of the keys.
#[derive(Debug)]
pub(crate) struct Slice {
    keys: u64,
    /// Resident bytes of this process.
    resident: Option<u64>,
    ours: Pace,
    by_hand: Option<Pace>,
}

pub(crate) fn run(
    runtime: &Runtime,
    target: &Target,
    by_hand: Option<&Target>,
    count: u64,
    slices: u64,
) -> Result<Vec<Slice>, Failure> {
    let ours = Arc::new(runtime.block_on(Tidegate::open(target.url(), Case::Keys))?);
    let by_hand = match by_hand {
        Some(target) => {
            Some((target, Arc::new(runtime.block_on(Multiplexed::open(target.url(), Case::Keys))?)))
        }
        None => None,
    };
    (0..slices)
        .map(|slice| {
            let (first, end) = (count * slice / slices, count * (slice + 1) / slices);
            progress(&format!("keys: {first} of {count}"));
            Ok(Slice {
                keys: end,
                ours: pace(runtime, &ours, target, first, end)?,
                resident: resident(),
                by_hand: match &by_hand {
                    Some((target, subject)) => Some(pace(runtime, subject, target, first, end)?),
                    None => None,
                },
            })
        })
        .collect()
}

fn pace<S: Subject>(
    runtime: &Runtime,
    subject: &Arc<S>,
    target: &Target,
    first: u64,
    end: u64,
) -> Result<Pace, Failure> {
    let before = target.begin()?;
    let begun = Instant::now();
    runtime.block_on(check(subject, first, end))?;
    let seconds = begun.elapsed().as_secs_f64();
    let checks = (end - first) as f64;
    Ok(Pace {
        per_second: checks / seconds,
        redis_us: target.end(&before)?.cpu_us / checks,
        used_memory: target.used_memory()?,
    })
}

async fn check<S: Subject>(subject: &Arc<S>, first: u64, end: u64) -> Result<(), Failure> {
    let next = Arc::new(AtomicU64::new(first));
    let tasks: Vec<_> = (0..Case::Keys.tasks())
        .map(|_| {
            let (subject, next) = (subject.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return Ok::<_, Failure>(());
                    }
                    if !subject.check(&S::key(Case::Keys, number as usize)).await? {
                        return Err("the first check of a key was denied".into());
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

/// Returns this process's resident memory in bytes, if the system reports it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

impl Pace {
    fn cells(&self) -> [String; 3] {
        [thousands(self.per_second), format!("{:.2}", self.redis_us), megabytes(self.used_memory)]
    }

    fn json(&self) -> Value {
        json!({
            "checks_per_s": self.per_second.round(),
            "redis_cpu_us_per_check": rounded(self.redis_us),
            "redis_used_memory_bytes": self.used_memory,
        })
    }
}

impl Slice {
    pub(crate) fn cells(&self) -> Vec<String> {
        let mut cells = vec![thousands(self.keys as f64)];
        cells.extend(self.ours.cells());
        cells.push(self.resident.map_or_else(|| "?".to_owned(), megabytes));
        cells.extend(self.by_hand.as_ref().map_or_else(|| [const { String::new() }; 3], Pace::cells));
        cells
    }

    pub(crate) fn json(&self) -> Value {
        let mut json = self.ours.json();
        json["keys"] = json!(self.keys);
        json["resident_bytes"] = json!(self.resident);
        json["by_hand"] = self.by_hand.as_ref().map_or(Value::Null, Pace::json);
        json
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

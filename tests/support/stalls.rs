//! When processes were not let run, by a thread that sleeps 1 ms at a time and notes by how much it
//! overslept, and what the system says of how long each thread stood in line for a processor.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(1);
/// Shorter ones are any system's.
const SHORTEST: Duration = Duration::from_micros(100);

pub struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Instant, Instant)>>,
}

/// In the order of their ends.
pub struct Stalls(Vec<(Instant, Instant)>);

impl Stalls {
    /// Of this process, which is called "self", and of others by their numbers.
    pub fn watch(processes: &[String]) -> Watch {
        let processes: Vec<String> =
            processes.iter().map(|process| format!("/proc/{process}/task")).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let thread = std::thread::spawn(move || {
            let (mut stalls, mut waited) = (Vec::new(), HashMap::new());
            longest_wait(&processes, &mut waited);
            while !ends.load(Ordering::SeqCst) {
                let before = Instant::now();
                std::thread::sleep(STEP);
                let overslept = before.elapsed().saturating_sub(STEP);
                let stall = overslept.max(longest_wait(&processes, &mut waited));
                if stall >= SHORTEST {
                    // A wait is told when it is over, so it may have begun before this step.
                    let end = Instant::now();
                    stalls.push((end - stall.max(before.elapsed()), end));
                }
            }
            stalls
        });
        Watch { is_over, thread }
    }

    /// The longest.
    pub fn worst(&self) -> Duration {
        self.0.iter().map(|(start, end)| *end - *start).max().unwrap_or_default()
    }

    /// How many microseconds between two times were lost, each counted once.
    pub fn within(&self, from: u64, to: u64, clock: impl Fn(Instant) -> u64) -> u64 {
        let first = self.0.partition_point(|&(_, end)| clock(end) <= from);
        let (mut lost, mut since) = (0, from);
        // What ends later may have begun earlier: a long wait of one thread.
        for &(start, end) in &self.0[first..] {
            let (start, end) = (clock(start).max(since), clock(end).min(to));
            if end > start {
                lost += end - start;
                since = end;
            }
            if end == to {
                break;
            }
        }
        lost
    }
}

impl Watch {
    pub fn end(self) -> Stalls {
        self.is_over.store(true, Ordering::SeqCst);
        Stalls(self.thread.join().unwrap())
    }
}

/// The longest that any thread of these has stood in line since the last call; nothing where the
/// system does not say.
fn longest_wait(processes: &[String], waited: &mut HashMap<PathBuf, u64>) -> Duration {
    let mut longest = 0;
    for task in processes.iter().filter_map(|process| fs::read_dir(process).ok()).flatten().flatten() {
        let path = task.path();
        let Ok(text) = fs::read_to_string(path.join("schedstat")) else { continue };
        let Some(now) = text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()) else { continue };
        let before = waited.insert(path, now).unwrap_or(now);
        longest = longest.max(now - before);
    }
    Duration::from_nanos(longest)
}

//! Records when processes were not scheduled. A thread sleeps 1 ms at a time and measures how much longer
//! each sleep took. It also reads how long the system kept each thread waiting for a processor.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(1);
/// Shorter stalls occur on every system and are ignored.
const SHORTEST: Duration = Duration::from_micros(100);

pub struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Instant, Instant)>>,
}

/// The start and end of each stall, in the order of the ends.
pub struct Stalls(Vec<(Instant, Instant)>);

impl Stalls {
    /// Starts to watch processes, by their ids. "self" is this process.
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
                    // The system reports a wait when it is over, so the wait may have started before this
                    // step.
                    let end = Instant::now();
                    stalls.push((end - stall.max(before.elapsed()), end));
                }
            }
            stalls
        });
        Watch { is_over, thread }
    }

    /// Returns the length of the longest stall.
    pub fn worst(&self) -> Duration {
        self.0.iter().map(|(start, end)| *end - *start).max().unwrap_or_default()
    }

    /// Returns the number of microseconds between two times that were lost to stalls. Overlapping stalls
    /// count once.
    pub fn within(&self, from: u64, to: u64, clock: impl Fn(Instant) -> u64) -> u64 {
        let first = self.0.partition_point(|&(_, end)| clock(end) <= from);
        let (mut lost, mut since) = (0, from);
        // A stall that ends later may have started earlier, as with a long wait of one thread.
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

/// Returns the longest time that any thread of these processes has waited for a processor since the last
/// call. Returns zero if the system does not report it.
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

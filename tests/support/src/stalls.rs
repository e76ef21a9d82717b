//! Records when processes could not run. A thread sleeps 1 ms at a time and measures how much longer each sleep
//! took. It also reads how long the system kept each thread waiting for a processor, and whether a thread waits
//! for the disk, such as for a page of its program that the system had dropped from memory.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_testkit::Server;

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
    /// Starts to watch processes, by their ids. "self" is this process. Returns when the watch has started.
    pub fn watch(processes: &[String]) -> Watch {
        let processes = task_folders(processes);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let (started, has_started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (mut stalls, mut waited) = (Vec::new(), HashMap::new());
            longest_wait(&processes, &mut waited);
            started.send(()).unwrap();
            while !ends.load(Ordering::SeqCst) {
                let before = Instant::now();
                std::thread::sleep(STEP);
                let overslept = before.elapsed().saturating_sub(STEP);
                let on_disk = if is_any_on_disk(&processes) { STEP } else { Duration::ZERO };
                let stall = overslept.max(on_disk).max(longest_wait(&processes, &mut waited));
                if stall >= SHORTEST {
                    // The system reports a wait when it is over, so the wait may have started before this
                    // step.
                    let end = Instant::now();
                    stalls.push((end - stall.max(before.elapsed()), end));
                }
            }
            stalls
        });
        has_started.recv().unwrap();
        Watch { is_over, thread }
    }

    /// Returns the length of the longest stall. Stalls that follow each other within a step count as one.
    pub fn worst(&self) -> Duration {
        let (mut worst, mut current) = (Duration::ZERO, None);
        for &(start, end) in &self.0 {
            let since = match current {
                Some((since, last)) if start <= last + STEP => start.min(since),
                _ => start,
            };
            current = Some((since, end));
            worst = worst.max(end - since);
        }
        worst
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

    /// Returns the part of the time between two instants that was lost to stalls.
    pub fn between(&self, from: Instant, to: Instant) -> Duration {
        let clock = |at: Instant| u64::try_from(at.saturating_duration_since(from).as_micros()).unwrap();
        Duration::from_micros(self.within(0, clock(to), clock))
    }
}

impl Watch {
    pub fn end(self) -> Stalls {
        self.is_over.store(true, Ordering::SeqCst);
        Stalls(self.thread.join().unwrap())
    }
}

/// The time that processes could not run. Costs less than [`Stalls`] of these processes: reads only at the
/// start and at the end how long each thread has waited for a processor, and watches for stalls of the whole
/// system.
pub struct LostTime {
    processes: Vec<String>,
    waited: HashMap<PathBuf, u64>,
    watch: Watch,
}

impl LostTime {
    /// Starts to measure. "self" is this process.
    pub fn start(processes: &[String]) -> Self {
        let processes = task_folders(processes);
        let mut waited = HashMap::new();
        longest_wait(&processes, &mut waited);
        Self { processes, waited, watch: Stalls::watch(&[]) }
    }

    /// Returns the longest time that a thread, or the whole system, lost since the start.
    pub fn end(mut self) -> Duration {
        let waited = longest_wait(&self.processes, &mut self.waited);
        self.watch.end().worst().max(waited)
    }
}

/// Returns a bound for code that lost this much time to stalls. A bound is extended by at most twice itself: a
/// measurement can include threads that the code does not wait for, such as those of other tests.
pub fn extended(bound: Duration, lost: Duration) -> Duration {
    bound + lost.min(2 * bound)
}

/// Returns the process id of a server that is a process of this machine.
pub fn process_id(server: &Server) -> String {
    let info = server.cli(&["INFO", "server"]).unwrap();
    let id = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    id.unwrap().trim().to_owned()
}

/// Returns whether a thread of these processes waits for the disk now.
fn is_any_on_disk(processes: &[String]) -> bool {
    tasks(processes).any(|task| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses and may contain some.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('D'))
    })
}

/// Returns the folder that contains the threads, for each process.
fn task_folders(processes: &[String]) -> Vec<String> {
    processes.iter().map(|process| format!("/proc/{process}/task")).collect()
}

/// Returns the folders of the threads of these processes.
fn tasks(processes: &[String]) -> impl Iterator<Item = PathBuf> {
    let folders = processes.iter().filter_map(|process| fs::read_dir(process).ok());
    folders.flatten().flatten().map(|task| task.path())
}

/// Returns the longest time that any thread of these processes has waited for a processor since the last
/// call. Returns zero if the system does not report it.
fn longest_wait(processes: &[String], waited: &mut HashMap<PathBuf, u64>) -> Duration {
    let mut longest = 0;
    for path in tasks(processes) {
        let Ok(text) = fs::read_to_string(path.join("schedstat")) else { continue };
        let Some(now) = text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()) else { continue };
        // A thread that was not there before has not waited before.
        let before = waited.insert(path, now).unwrap_or(0);
        longest = longest.max(now - before);
    }
    Duration::from_nanos(longest)
}

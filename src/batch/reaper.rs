//! The reaper's thread, and when it runs its next round, which is [`reap`](super::timeout).
//!
//! It has its own runtime, so it also works while the service's runtimes are blocked or have ended. A timer
//! for each caller would cost a fifth of a merged check. The reaper runs when the first known deadline passes
//! and at least once per stall time, and sleeps while nothing waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::time::Instant;

/// At the latest after this time, the reaper takes over from a dispatcher that has not finished its
/// call: its runtime may be blocked.
const LONGEST_STALL: Duration = Duration::from_millis(500);
/// Nothing waits: the next caller to enqueue wakes the thread.
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Reaper {
    start: Instant,
    /// The age of a call from which on the reaper takes over.
    pub(super) stall: Duration,
    /// Empty while the system provides no thread.
    thread: OnceLock<Thread>,
    /// Locked by the caller that starts the thread.
    starting: Mutex<()>,
    /// When it looks again without being woken, in microseconds since `start`.
    looks_at_us: AtomicU64,
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    runtime: Handle,
    alarm: Arc<Alarm>,
}

/// Wakes the thread.
#[derive(Debug, Default)]
struct Alarm(Notify);

impl Reaper {
    /// `longest` is the limiter's deadline.
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            start: Instant::now(),
            stall: (longest / 4).min(LONGEST_STALL),
            thread: OnceLock::new(),
            starting: Mutex::default(),
            looks_at_us: AtomicU64::new(NEVER),
        }
    }

    /// Ensures that a round runs at this time, for a caller that has just enqueued. The first call starts the
    /// thread with `start`; if that fails, a later one does. Returns false if there is no thread.
    pub(super) fn watch(&self, due_us: u64, start: impl FnOnce() -> Option<Thread>) -> bool {
        if self.thread.get().is_none()
            && let Ok(_alone) = self.starting.try_lock()
            && self.thread.get().is_none()
            && let Some(thread) = start()
        {
            let _ = self.thread.set(thread);
        }
        let Some(thread) = self.thread.get() else { return false };
        if due_us < self.looks_at_us.load(Ordering::Relaxed) {
            thread.alarm.0.notify_one();
        }
        true
    }

    pub(super) fn thread(&self) -> Option<&Thread> {
        self.thread.get()
    }

    pub(super) fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_micros() as u64
    }

    /// Runs one round. `reap` is given the time and the latest time of the next round, and returns when the
    /// next is due; `None` if nothing waits.
    pub(super) fn look(&self, reap: impl Fn(Instant, Instant) -> Option<Instant>) -> Option<Instant> {
        loop {
            let now = Instant::now();
            let next_round = now + self.stall;
            // Race: the reaper stores the time, then reads the queues; a caller enqueues, then loads the
            // time. The locks of the queues order the two. So either the reaper finds the check, or its
            // caller finds the time and wakes the reaper if it is due earlier.
            self.looks_at_us.store(self.micros(next_round), Ordering::Relaxed);
            if let Some(due) = reap(now, next_round) {
                return Some(due);
            }
            self.looks_at_us.store(NEVER, Ordering::Relaxed);
            reap(now, next_round)?;
        }
    }
}

impl Thread {
    /// Starts the thread, which ends with its task. Returns `None` where the system provides no thread.
    pub(super) fn start<Task: Future>(task: impl FnOnce(Self) -> Task + Send + 'static) -> Option<Self> {
        let alarm = Arc::<Alarm>::default();
        // Starts the thread first: a runtime that no thread takes could not be dropped here, inside another
        // runtime.
        let (give, take) = mpsc::channel::<Runtime>();
        let woken = alarm.clone();
        let run = move || {
            let Ok(runtime) = take.recv() else { return };
            let thread = Self { runtime: runtime.handle().clone(), alarm: woken };
            runtime.block_on(task(thread));
        };
        std::thread::Builder::new().name("tidegate-batch".to_owned()).spawn(run).ok()?;
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let thread = Self { runtime: runtime.handle().clone(), alarm };
        give.send(runtime).ok()?;
        Some(thread)
    }

    /// Runs a task on the reaper's runtime.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Returns a waker that starts the next round.
    pub(super) fn waker(&self) -> Waker {
        self.alarm.clone().into()
    }

    /// Sleeps until then, or until the thread is woken.
    pub(super) async fn sleep(&self, until: Option<Instant>) {
        let woken = self.alarm.0.notified();
        match until {
            Some(until) => drop(tokio::time::timeout_at(until, woken).await),
            None => woken.await,
        }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// The thread ends with the batch.
impl Drop for Reaper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread() {
            thread.alarm.0.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_could_not_be_started_is_started_by_a_later_caller() {
        let reaper = Reaper::new(Duration::from_secs(1));
        assert!(!reaper.watch(1, || None));
        assert!(reaper.watch(1, || Thread::start(|_| async {})));
        assert!(reaper.watch(1, || unreachable!("it was started")));
    }
}

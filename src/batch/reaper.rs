//! The reaper: a thread that notifies callers whose deadline has passed, and takes over from dispatchers that
//! their runtimes do not poll.
//!
//! It has its own runtime, so it also works while the service's runtimes are blocked or have ended. A timer
//! for each caller would cost a fifth of a merged check. The reaper runs when the first known deadline passes
//! and at least once per stall time, and sleeps while nothing waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::BatchInner;
use super::dispatcher::InFlight;
use super::lateness::Lateness;

/// Nothing waits: the next caller to enqueue wakes the thread.
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Reaper {
    start: Instant,
    /// The age of a call from which on the reaper takes over.
    pub(super) stall: Duration,
    /// `None` where the system provides no thread.
    thread: OnceLock<Option<Thread>>,
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
    pub(super) fn new(stall: Duration) -> Self {
        Self { start: Instant::now(), stall, thread: OnceLock::new(), looks_at_us: AtomicU64::new(NEVER) }
    }

    /// Ensures that a caller that has just enqueued is notified at its deadline. Returns false if
    /// there is no thread.
    pub(super) fn watch(&self, shared: &Arc<BatchInner>, due_us: u64) -> bool {
        let Some(thread) = self.thread.get_or_init(|| begin(Arc::downgrade(shared))) else { return false };
        if due_us < self.looks_at_us.load(Ordering::Relaxed) {
            thread.alarm.0.notify_one();
        }
        true
    }

    pub(super) fn thread(&self) -> Option<&Thread> {
        self.thread.get()?.as_ref()
    }

    pub(super) fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_micros() as u64
    }

    /// Runs one round. Returns when the next is due; `None` if nothing waits.
    fn look(&self, shared: &Arc<BatchInner>, thread: &Thread) -> Option<Instant> {
        loop {
            let now = Instant::now();
            let next_round = now + self.stall;
            // Race: the reaper stores the time, then reads the queues; a caller enqueues, then loads the
            // time. The locks of the queues order the two. So either the reaper finds the check, or its
            // caller finds the time and wakes the reaper if it is due earlier.
            self.looks_at_us.store(self.micros(next_round), Ordering::Relaxed);
            if let Some(due) = shared.reap(now, next_round, thread) {
                return Some(due);
            }
            self.looks_at_us.store(NEVER, Ordering::Relaxed);
            shared.reap(now, next_round, thread)?;
        }
    }
}

impl Thread {
    /// Runs a task on the reaper's runtime.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Polls a call that its dispatcher does not finish, now and whenever it makes progress. In a task,
    /// since a panic of an observer must not end this thread.
    pub(super) fn help(&self, in_flight: Arc<InFlight>, late: Lateness) {
        let waker = Waker::from(self.alarm.clone());
        self.spawn(async move { in_flight.help(late, &waker) });
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

fn begin(shared: Weak<BatchInner>) -> Option<Thread> {
    let alarm = Arc::<Alarm>::default();
    // Starts the thread first: a runtime that no thread takes could not be dropped here, inside another
    // runtime.
    let (give, take) = mpsc::channel::<Runtime>();
    let woken = alarm.clone();
    let run = move || {
        let Ok(runtime) = take.recv() else { return };
        let thread = Thread { runtime: runtime.handle().clone(), alarm: woken };
        runtime.block_on(reap(&shared, &thread));
    };
    std::thread::Builder::new().name("tidegate-batch".to_owned()).spawn(run).ok()?;
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let thread = Thread { runtime: runtime.handle().clone(), alarm };
    give.send(runtime).ok()?;
    Some(thread)
}

async fn reap(shared: &Weak<BatchInner>, thread: &Thread) {
    while let Some(due) = shared.upgrade().map(|shared| shared.reaper.look(&shared, thread)) {
        let woken = thread.alarm.0.notified();
        match due {
            Some(due) => drop(tokio::time::timeout_at(due, woken).await),
            None => woken.await,
        }
    }
}

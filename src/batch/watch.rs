//! Tells callers whose deadline has passed while they waited for a batch.
//!
//! A thread of its own: it runs also where a runtime stands still, and a timer for
//! each caller would take a fifth of a merged check. It looks when the first of those
//! whom it saw is due, or after half the limiter's deadline, and sleeps while nobody waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;

/// Nobody waits: whoever comes wakes it.
const NEVER: u64 = u64::MAX;
/// A longer deadline is looked at now and then.
const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub(super) struct Watch {
    start: Instant,
    /// `None` where the system gives no thread.
    thread: OnceLock<Option<Thread>>,
    /// By when it looks again unasked, in microseconds since `start`.
    looks_at_us: AtomicU64,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), thread: OnceLock::new(), looks_at_us: AtomicU64::new(NEVER) }
    }

    /// Sees to it that whoever has just lined up is told at its deadline. False
    /// if nobody can.
    pub(super) fn over(&self, shared: &Arc<Shared>, due_us: u64) -> bool {
        let Some(thread) = self.thread.get_or_init(|| begin(Arc::downgrade(shared))) else { return false };
        if due_us < self.looks_at_us.load(Ordering::Relaxed) {
            thread.unpark();
        }
        true
    }

    pub(super) fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_micros() as u64
    }

    /// The thread's part: for how long to sleep.
    fn look(&self, shared: &Shared) -> Option<Duration> {
        loop {
            let now = Instant::now();
            let promised = now + (shared.longest / 2).min(LONGEST_SLEEP);
            // Before it looks: who comes after that and is due sooner wakes it. The locks of
            // the lines order the two.
            self.looks_at_us.store(self.micros(promised), Ordering::Relaxed);
            if let Some(due) = shared.tell_late(now) {
                return Some(due.min(promised).saturating_duration_since(now));
            }
            self.looks_at_us.store(NEVER, Ordering::Relaxed);
            shared.tell_late(Instant::now())?;
        }
    }
}

/// Ends with the batch.
impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
    }
}

fn begin(shared: Weak<Shared>) -> Option<Thread> {
    let watch = move || {
        while let Some(sleep) = shared.upgrade().map(|shared| shared.watch.look(&shared)) {
            match sleep {
                Some(sleep) => thread::park_timeout(sleep),
                None => thread::park(),
            }
        }
    };
    let thread = thread::Builder::new().name("tidegate-batch".to_owned()).spawn(watch);
    thread.ok().map(|thread| thread.thread().clone())
}

//! The circuit breaker: when asks stay without an answer, nobody is sent to the
//! store any more but a probe now and then, until one is answered.
//!
//! Refusals do not open it (OOM, NOPERM, a corrupt key): they come at once, and
//! cost a round trip each as an answer does.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::Deadline;
use crate::error::Error;
use crate::observer::Observer;
use crate::store::{Group, Store};

/// Asks without an answer, less those with one, that open it: five in a row, or
/// more than half for a while.
const FAILURES: u32 = 5;
/// Between probes, at first and at most; each by chance up to a half sooner, so
/// that a fleet does not knock at the same moment.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Breaker(Arc<Shared>);

struct Shared {
    store: Arc<Store>,
    /// What a probe asks: a peek, which any Redis that works can answer.
    probe: Group,
    deadline: Duration,
    observer: Option<Arc<dyn Observer>>,
    failures: AtomicU32,
    is_open: AtomicBool,
    /// Whether a task is there that probes. It ends with its runtime; then the
    /// next who asks begins another.
    is_probed: AtomicBool,
    is_over: AtomicBool,
    /// Whether it ever opens.
    is_on: bool,
    opened: Mutex<Option<Instant>>,
}

impl Breaker {
    pub(crate) fn new(
        store: Arc<Store>,
        probe: Group,
        deadline: Duration,
        observer: Option<Arc<dyn Observer>>,
        is_on: bool,
    ) -> Self {
        Self(Arc::new(Shared {
            store,
            probe,
            deadline,
            observer,
            failures: AtomicU32::new(0),
            is_open: AtomicBool::new(false),
            is_probed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_on,
            opened: Mutex::new(None),
        }))
    }

    /// An error where the store is not to be asked.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.0.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        self.probe();
        Err(Error::breaker_open())
    }

    /// What became of an ask. One with a deadline of its own that is shorter
    /// than the limiter's tells nothing by missing it.
    #[inline]
    pub(crate) fn saw<T>(&self, result: &Result<T, Error>, deadline: Duration) {
        match result {
            Err(error) if error.is_unanswered() => {
                let is_short = error.is_timeout() && deadline < self.0.deadline;
                if self.0.is_on && !is_short {
                    self.failed();
                }
            }
            // Nothing is written as long as all is well.
            _ if self.0.failures.load(Ordering::Relaxed) == 0 => {}
            _ => {
                let less = |failures: u32| failures.checked_sub(1);
                let _ = self.0.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
    }

    /// For how long it has been open.
    pub(crate) fn open_for(&self) -> Option<Duration> {
        let opened = *self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.filter(|_| self.0.is_open.load(Ordering::Acquire)).map(|opened| opened.elapsed())
    }

    /// Asks the store once, whatever the state.
    pub(crate) async fn is_answered(&self) -> bool {
        self.0.is_answered().await
    }

    /// Nobody is asked any more, not even by a probe.
    pub(crate) fn end(&self) {
        self.0.is_over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Acquire)
    }

    fn failed(&self) {
        if self.0.failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES {
            return;
        }
        if self.0.is_open.swap(true, Ordering::AcqRel) {
            return;
        }
        *self.0.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if let Some(observer) = &self.0.observer {
            observer.breaker(true);
        }
        self.probe();
    }

    /// Begins to probe, unless that goes on.
    fn probe(&self) {
        if self.0.is_probed.load(Ordering::Relaxed) || self.0.is_probed.swap(true, Ordering::AcqRel) {
            return;
        }
        // Nothing is held on to: the task ends when the limiter is dropped.
        let probing = Probing(Arc::downgrade(&self.0));
        tokio::spawn(probing.run());
    }
}

struct Probing(Weak<Shared>);

impl Probing {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            let Some(shared) = self.0.upgrade().filter(|shared| !shared.is_over.load(Ordering::Acquire))
            else {
                return;
            };
            if shared.is_answered().await {
                shared.close();
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.is_probed.store(false, Ordering::Release);
        }
    }
}

impl Shared {
    async fn is_answered(&self) -> bool {
        let deadline = Deadline::new(self.deadline);
        let answers = self.store.take(std::slice::from_ref(&self.probe), deadline).await;
        answers.iter().all(|answer| !matches!(answer, Err(error) if error.is_unanswered()))
    }

    fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.is_open.store(false, Ordering::Release);
        if let Some(observer) = &self.observer {
            observer.breaker(false);
        }
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Breaker").field("open_for", &self.open_for()).finish_non_exhaustive()
    }
}

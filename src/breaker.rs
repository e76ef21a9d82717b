//! The circuit breaker: while Redis does not answer, checks are not sent to it. It is probed until it
//! answers.
//!
//! There is one circuit for each hash tag of a cluster, so that a lost primary does not affect the keys of
//! the others; a single Redis has one circuit. Error replies (OOM, NOPERM, a corrupt key) do not open a
//! circuit: they arrive at once and cost a round trip each, as other replies do.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::background::{Background, Job, JobSlot};
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::Place;
use crate::observer::Observer;
use crate::store::{Group, Store};

/// The failure count that opens a circuit: unanswered checks less answered ones. Five in a row reach it, or
/// more than half for a while.
const MAX_FAILURES: u32 = 5;
/// The pause between two probes, at first and at most. Up to 50 % jitter desynchronizes a fleet's probes.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Breaker(Arc<Shared>);

struct Shared {
    store: Arc<Store>,
    deadline: Duration,
    observer: Option<Arc<dyn Observer>>,
    background: Arc<Background>,
    circuits: Box<[Circuit]>,
    /// The number of open circuits. Locked while the observer is notified, so that it is notified in order.
    open: Mutex<usize>,
    is_enabled: bool,
    is_shut_down: AtomicBool,
}

struct Circuit {
    failures: AtomicU32,
    is_open: AtomicBool,
    opened_at: Mutex<Option<Instant>>,
    /// A peek at a key of the circuit's hash tag: any Redis that works can answer it.
    probe: Group,
    probing: JobSlot,
}

/// The settings of a breaker.
pub(crate) struct Settings {
    pub(crate) store: Arc<Store>,
    /// One for each circuit, in the order of the hash tags.
    pub(crate) probes: Vec<Group>,
    pub(crate) deadline: Duration,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) background: Arc<Background>,
    /// If false, no circuit ever opens.
    pub(crate) is_enabled: bool,
}

impl Breaker {
    pub(crate) fn new(settings: Settings) -> Self {
        let Settings { store, probes, deadline, observer, background, is_enabled } = settings;
        let circuits = probes.into_iter().map(|probe| Circuit {
            failures: AtomicU32::new(0),
            is_open: AtomicBool::new(false),
            opened_at: Mutex::default(),
            probe,
            probing: JobSlot::default(),
        });
        Self(Arc::new(Shared {
            store,
            deadline,
            observer,
            background,
            circuits: circuits.collect(),
            open: Mutex::default(),
            is_enabled,
            is_shut_down: AtomicBool::new(false),
        }))
    }

    /// Returns an error if checks of this hash tag must not be sent.
    #[inline]
    pub(crate) fn check(&self, tag: Place) -> Result<(), Error> {
        if !self.is_open(tag) {
            return Ok(());
        }
        // Only needed where the job panicked in an observer.
        self.ensure_probing(tag);
        Err(Error::breaker_open())
    }

    /// Returns whether the circuit of this hash tag is open.
    #[inline]
    pub(crate) fn is_open(&self, tag: Place) -> bool {
        self.0.circuit(tag).is_open.load(Ordering::Acquire)
    }

    /// Counts the result of a check. A timeout before the limiter's own deadline does not count as a failure
    /// of Redis.
    #[inline]
    pub(crate) fn record<T>(&self, tag: Place, result: &Result<T, Error>, deadline: Duration) {
        match result {
            Err(error) if error.is_unanswered() => {
                let is_short = error.is_timeout() && deadline < self.0.deadline;
                if self.0.is_enabled && !is_short {
                    self.count_failure(tag);
                }
            }
            _ => {
                let failures = &self.0.circuit(tag).failures;
                // While Redis answers, callers write no shared cache line.
                if failures.load(Ordering::Relaxed) > 0 {
                    let one_less = |failures: u32| failures.checked_sub(1);
                    let _ = failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
                }
            }
        }
    }

    /// Returns whether all circuits are open, so that no check may be sent.
    pub(crate) fn are_all_open(&self) -> bool {
        self.0.circuits.iter().all(|circuit| circuit.is_open.load(Ordering::Acquire))
    }

    /// Returns for how long a circuit has been open; if several are, the one that opened first.
    pub(crate) fn open_for(&self) -> Option<Duration> {
        let open = self.0.circuits.iter().filter(|circuit| circuit.is_open.load(Ordering::Acquire));
        let opened_at = open.filter_map(|circuit| *lock(&circuit.opened_at));
        opened_at.min().map(|opened_at| opened_at.elapsed())
    }

    /// Sends a probe, regardless of the circuit's state. Returns whether Redis answered.
    pub(crate) async fn is_answered(&self, tag: Place) -> bool {
        self.0.is_answered(self.0.circuit(tag)).await
    }

    /// Ends probing, and all jobs that check [`is_shut_down`](Self::is_shut_down).
    pub(crate) fn shut_down(&self) {
        self.0.is_shut_down.store(true, Ordering::Release);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.0.is_shut_down.load(Ordering::Acquire)
    }

    fn count_failure(&self, tag: Place) {
        let circuit = self.0.circuit(tag);
        let failures = circuit.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= MAX_FAILURES && !self.is_open(tag) {
            self.0.open(circuit);
            self.ensure_probing(tag);
        }
    }

    fn ensure_probing(&self, tag: Place) {
        let probing = || Probing { shared: Arc::downgrade(&self.0), tag };
        self.0.circuit(tag).probing.ensure_running(&self.0.background, probing);
    }
}

impl Shared {
    fn circuit(&self, tag: Place) -> &Circuit {
        &self.circuits[tag.index() % self.circuits.len()]
    }

    async fn is_answered(&self, circuit: &Circuit) -> bool {
        let deadline = Deadline::new(self.deadline);
        let answers = self.store.take(std::slice::from_ref(&circuit.probe), deadline).await;
        answers.iter().all(|answer| !matches!(answer, Err(error) if error.is_unanswered()))
    }

    fn open(&self, circuit: &Circuit) {
        let mut open = lock(&self.open);
        if circuit.is_open.load(Ordering::Acquire) {
            return;
        }
        *lock(&circuit.opened_at) = Some(Instant::now());
        circuit.is_open.store(true, Ordering::SeqCst);
        *open += 1;
        if *open == 1 {
            self.notify(true);
        }
    }

    fn close(&self, circuit: &Circuit) {
        let mut open = lock(&self.open);
        circuit.failures.store(0, Ordering::Relaxed);
        if circuit.is_open.swap(false, Ordering::SeqCst) {
            *open -= 1;
            if *open == 0 {
                self.notify(false);
            }
        }
    }

    fn notify(&self, is_open: bool) {
        if let Some(observer) = &self.observer {
            observer.breaker(is_open);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Probes until the circuit closes. Does not keep the limiter alive.
struct Probing {
    shared: Weak<Shared>,
    tag: Place,
}

impl Probing {
    fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.upgrade().filter(|shared| !shared.is_shut_down.load(Ordering::Acquire))
    }
}

impl Job for Probing {
    async fn run(&self) {
        let mut pause = MIN_PAUSE;
        loop {
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            let Some(shared) = self.shared() else { return };
            let circuit = shared.circuit(self.tag);
            if shared.is_answered(circuit).await {
                return shared.close(circuit);
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn is_needed(&self) -> bool {
        self.shared().is_some_and(|shared| shared.circuit(self.tag).is_open.load(Ordering::SeqCst))
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Breaker").field("open_for", &self.open_for()).finish_non_exhaustive()
    }
}

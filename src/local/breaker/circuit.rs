//! The state of circuits: which are open, and when the observer is notified.

use std::ops::Deref;

use tokio::time::Instant;

use crate::runtime::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::runtime::sync::{Mutex, lock};

/// The failure count that opens a circuit: unanswered checks less answered ones. Five in a row reach it, or
/// more than half for a while.
const MAX_FAILURES: u32 = 5;

pub(super) struct Circuits {
    all: Box<[Circuit]>,
    /// The number of open circuits. Locked while the observer is notified, so that it is notified in order.
    open: Mutex<usize>,
}

#[derive(Default)]
pub(super) struct Circuit {
    failures: AtomicU32,
    is_open: AtomicBool,
    opened_at: Mutex<Option<Instant>>,
}

impl Circuits {
    pub(super) fn new(number: usize) -> Self {
        Self { all: (0..number).map(|_| Circuit::default()).collect(), open: Mutex::default() }
    }

    /// Opens a circuit. Notifies if it is the only open one.
    pub(super) fn open(&self, circuit: &Circuit, notify: impl FnOnce()) {
        let mut open = lock(&self.open);
        if circuit.is_open() {
            return;
        }
        *lock(&circuit.opened_at) = Some(Instant::now());
        // `SeqCst` for `JobSlot`: the probe is work.
        circuit.is_open.store(true, Ordering::SeqCst);
        *open += 1;
        if *open == 1 {
            notify();
        }
    }

    /// Closes a circuit. Notifies if it was the only open one.
    pub(super) fn close(&self, circuit: &Circuit, notify: impl FnOnce()) {
        let mut open = lock(&self.open);
        circuit.failures.store(0, Ordering::Relaxed);
        if circuit.is_open.swap(false, Ordering::SeqCst) {
            *open -= 1;
            if *open == 0 {
                notify();
            }
        }
    }
}

impl Deref for Circuits {
    type Target = [Circuit];

    fn deref(&self) -> &[Circuit] {
        &self.all
    }
}

impl Circuit {
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns whether the circuit is open, to a probe that has released its [`JobSlot`].
    ///
    /// [`JobSlot`]: crate::runtime::background::JobSlot
    pub(super) fn is_still_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Returns `None` if the circuit is closed.
    pub(super) fn opened_at(&self) -> Option<Instant> {
        self.is_open().then(|| *lock(&self.opened_at)).flatten()
    }

    /// Returns whether the circuit is to be opened.
    pub(super) fn count_failure(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        failures >= MAX_FAILURES && !self.is_open()
    }

    #[inline]
    pub(super) fn count_answer(&self) {
        // While Redis answers, callers write no shared cache line.
        if self.failures.load(Ordering::Relaxed) > 0 {
            let one_less = |failures: u32| failures.checked_sub(1);
            let _ = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    }
}

//! Several copies of a value that all threads read. Each check holds a reference while it waits. With a
//! single copy, the cache line of its reference count would move between cores for every check.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::runtime::{Handle, RuntimeFlavor};

/// The number of copies. With more threads than this, threads share copies.
const COPIES: usize = 16;

#[derive(Debug)]
pub(crate) struct ShardedArc<T> {
    value: T,
    /// Each created when one of its threads first needs it: most values are used by few threads.
    copies: [OnceLock<Arc<T>>; COPIES],
}

impl<T: Clone> ShardedArc<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value, copies: Default::default() }
    }

    /// Returns the copy of this thread.
    #[inline]
    pub(crate) fn mine(&self) -> &Arc<T> {
        self.copies[number() % COPIES].get_or_init(|| Arc::new(self.value.clone()))
    }
}

/// Returns the number of this thread. Threads are numbered in the order of their first calls.
#[inline]
pub(crate) fn number() -> usize {
    match NUMBER.get() {
        NONE => assign_number(),
        number => number,
    }
}

/// The number of a thread that has none yet.
const NONE: usize = usize::MAX;

thread_local! {
    // A constant needs no test whether it was initialized: each leased check reads it.
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
}

#[cold]
fn assign_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let number = THREADS.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// Returns whether this thread drives a current-thread runtime. Determined at the thread's first call.
pub(crate) fn drives_a_runtime() -> bool {
    thread_local! {
        static DRIVES: bool = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
    }
    DRIVES.with(|drives| *drives)
}

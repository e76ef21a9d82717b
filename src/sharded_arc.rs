//! Several copies of a value that all threads read. Each check holds a reference while it waits. With a
//! single copy, the cache line of its reference count would move between cores for every check.

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
pub(crate) fn number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Returns whether this thread drives a current-thread runtime. Determined at the thread's first call.
pub(crate) fn drives_a_runtime() -> bool {
    thread_local! {
        static DRIVES: bool = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
    }
    DRIVES.with(|drives| *drives)
}

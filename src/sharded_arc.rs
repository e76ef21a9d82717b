//! Several copies of a value that all threads read. Each check holds a reference while it waits. With a
//! single copy, the cache line of its reference count would move between cores for every check.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Handle, RuntimeFlavor};

/// The number of copies. With more threads than this, threads share copies.
const COPIES: usize = 16;

#[derive(Debug)]
pub(crate) struct ShardedArc<T>([Arc<T>; COPIES]);

impl<T> ShardedArc<T> {
    pub(crate) fn new(copy: impl Fn() -> T) -> Self {
        Self(std::array::from_fn(|_| Arc::new(copy())))
    }

    /// Returns the copy of this thread.
    pub(crate) fn mine(&self) -> &Arc<T> {
        &self.0[number() % COPIES]
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

//! Copies of what all threads read and keep: each ask holds a reference for as
//! long as it waits, and the count of one that all share would go from core to
//! core for each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Handle, RuntimeFlavor};

/// Threads beyond so many share with others.
const COPIES: usize = 16;

#[derive(Debug)]
pub(crate) struct PerThread<T>([Arc<T>; COPIES]);

impl<T> PerThread<T> {
    pub(crate) fn new(copy: impl Fn() -> T) -> Self {
        Self(std::array::from_fn(|_| Arc::new(copy())))
    }

    /// The copy of this thread.
    pub(crate) fn mine(&self) -> &Arc<T> {
        &self.0[number() % COPIES]
    }
}

/// Of this thread, in the order in which they first ask.
pub(crate) fn number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Whether the runtime in which this thread first asks is driven by it alone.
pub(crate) fn drives_a_runtime() -> bool {
    thread_local! {
        static DRIVES: bool = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
    }
    DRIVES.with(|drives| *drives)
}

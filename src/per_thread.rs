//! Copies of what all threads read and keep: each ask holds a reference for as
//! long as it waits, and the count of one that all share would go from core to
//! core for each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

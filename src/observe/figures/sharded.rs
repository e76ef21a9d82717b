//! Counters that all threads write. With a single copy, its cache line would move between cores at each write.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::runtime::sharded_arc;

/// The number of copies, which the threads share by their numbers.
const COPIES: usize = 16;

/// Copies of a set of counters, each created when one of its threads first needs it.
#[derive(Debug)]
pub(super) struct Sharded<T>([OnceLock<Box<Line<T>>>; COPIES]);

/// Begins at a cache line, and the processor fetches pairs of them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

impl<T: Default> Sharded<T> {
    /// Adds 1 to a counter in the copy of the calling thread. Readers sum all copies, so the order of additions does
    /// not matter.
    #[inline]
    pub(super) fn increment(&self, counter: impl FnOnce(&T) -> &AtomicU64) {
        self.add_by_thread(sharded_arc::number(), 1, counter);
    }

    /// Adds `n` to a counter in the copy of the calling thread.
    pub(super) fn add(&self, n: u64, counter: impl FnOnce(&T) -> &AtomicU64) {
        self.add_by_thread(sharded_arc::number(), n, counter);
    }

    /// `thread` is the number of the calling thread.
    #[inline]
    fn add_by_thread(&self, thread: usize, n: u64, counter: impl FnOnce(&T) -> &AtomicU64) {
        let copy = &self.0[thread % COPIES].get_or_init(Box::default).0;
        counter(copy).fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the copies of all threads.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|copy| Some(&copy.get()?.0))
    }
}

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        Self(Default::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_count_at_the_same_time_lose_nothing() {
        let counters: Sharded<AtomicU64> = Sharded::default();
        std::thread::scope(|scope| {
            for thread in [0, 1, COPIES, COPIES + 1, 5 * COPIES] {
                let counters = &counters;
                scope.spawn(move || {
                    (0..10_000).for_each(|_| counters.add_by_thread(thread, 1, |counter| counter));
                });
            }
        });
        let sum: u64 = counters.all().map(|counter| counter.load(Ordering::Relaxed)).sum();
        assert_eq!((sum, counters.all().count()), (50_000, 2));
    }
}

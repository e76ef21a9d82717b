//! Counters that all threads write. With a single copy, its cache line would move between cores at each write.

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sharded_arc;

/// The number of threads with a copy of their own: the first threads that counted anything.
const OWN: usize = 16;
/// The number of copies that all further threads share.
const SHARED: usize = 16;

/// Copies of a set of counters, each created when one of its threads first needs it.
#[derive(Debug)]
pub(super) struct Sharded<T>([OnceLock<Box<Line<T>>>; OWN + SHARED]);

/// Begins at a cache line, and the processor fetches pairs of them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// The copy of the calling thread. Stays on its thread: no other may write to it.
pub(super) struct Mine<'a, T> {
    counters: &'a T,
    is_own: bool,
    not_send: PhantomData<*const ()>,
}

impl<T> Mine<'_, T> {
    /// Adds 1 to a counter. Readers sum all copies, so the order of additions does not matter.
    #[inline]
    pub(super) fn increment(self, counter: impl FnOnce(&T) -> &AtomicU64) {
        let counter = counter(self.counters);
        if self.is_own {
            // No other thread writes this counter, so the addition needs no atomic instruction.
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        } else {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<T: Default> Sharded<T> {
    #[inline]
    pub(super) fn mine(&self) -> Mine<'_, T> {
        self.of_thread(sharded_arc::number())
    }

    /// `thread` is the number of the calling thread.
    #[inline]
    fn of_thread(&self, thread: usize) -> Mine<'_, T> {
        let is_own = thread < OWN;
        let number = if is_own { thread } else { OWN + thread % SHARED };
        Mine { counters: self.copy(number), is_own, not_send: PhantomData }
    }

    #[inline]
    fn copy(&self, number: usize) -> &T {
        &self.0[number].get_or_init(Box::default).0
    }

    /// Returns the copies of all threads, which only their threads may write.
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
        let numbers = [0, OWN - 1, OWN, OWN + SHARED, OWN + 2 * SHARED, OWN + SHARED + 1];
        std::thread::scope(|scope| {
            for thread in numbers {
                let counters = &counters;
                scope.spawn(move || {
                    (0..10_000).for_each(|_| counters.of_thread(thread).increment(|counter| counter));
                });
            }
        });
        let sum: u64 = counters.all().map(|counter| counter.load(Ordering::Relaxed)).sum();
        assert_eq!((sum, counters.all().count()), (60_000, 4));
    }
}

//! The counters of one gate.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::format::{self, NumberText};
use crate::decision::{Decision, Source};
use crate::runtime::sharded_arc;
use crate::runtime::sync::{Mutex, lock};

/// The outcomes of a decision, as the texts of figures name them.
const OUTCOMES: [&str; 4] = ["a", "n", "d", "s"];
const SOURCES: usize = Source::ALL.len();

/// Counts the decisions of one gate of this process, by outcome and source.
#[derive(Debug, Default)]
pub(crate) struct GateCounters {
    /// Since the start.
    cells: Sharded<Cells>,
    /// The numbers that were taken.
    taken: Mutex<GateCounts>,
}

#[derive(Debug, Default)]
struct Cells {
    /// By outcome, then source.
    decided: [[AtomicU64; SOURCES]; OUTCOMES.len()],
    errors: AtomicU64,
}

/// The numbers of one gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GateCounts {
    decided: [[u64; SOURCES]; OUTCOMES.len()],
    errors: u64,
}

impl GateCounters {
    /// Counts a decision: one addition. Not of a lease, which [`add_leased`](Self::add_leased) counts.
    #[inline]
    pub(crate) fn count(&self, decision: &Decision) {
        if decision.source == Source::Lease {
            return;
        }
        let outcome = match (decision.shadow, decision.allowed) {
            (true, _) => 3,
            (false, false) => 2,
            (false, true) => usize::from(decision.is_near_limit()),
        };
        self.cells.increment(|cells| &cells.decided[outcome][decision.source as usize]);
    }

    /// Counts units that checks spent from leases, when a lease is refilled or ends. Counting each check would make a
    /// leased check a third slower.
    pub(crate) fn add_leased(&self, units: u64) {
        self.cells.add(units, |cells| &cells.decided[0][Source::Lease as usize]);
    }

    /// Counts a check that the store did not decide.
    pub(crate) fn count_error(&self) {
        self.cells.increment(|cells| &cells.errors);
    }

    /// Returns the numbers since the last call.
    pub(super) fn take(&self) -> GateCounts {
        let mut taken = lock(&self.taken);
        let all = self.all();
        let new = all.since(&taken);
        *taken = all;
        new
    }

    /// Returns whether everything was taken.
    pub(super) fn is_taken(&self) -> bool {
        self.all() == *lock(&self.taken)
    }

    fn all(&self) -> GateCounts {
        let mut sums = GateCounts::default();
        for cells in self.cells.all() {
            let counters = cells.decided.iter().flatten().chain([&cells.errors]);
            for (sum, counter) in sums.numbers_mut().zip(counters) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        sums
    }
}

impl GateCounts {
    /// Returns the number of decisions and errors.
    pub(super) fn total(&self) -> u64 {
        self.decided.iter().flatten().fold(self.errors, |sum, count| sum.saturating_add(*count))
    }

    pub(super) fn add(&mut self, mut other: Self) {
        for (sum, count) in self.numbers_mut().zip(other.numbers_mut()) {
            *sum = sum.saturating_add(*count);
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        let (mut new, mut earlier) = (self.clone(), earlier.clone());
        for (count, before) in new.numbers_mut().zip(earlier.numbers_mut()) {
            *count = count.wrapping_sub(*before);
        }
        new
    }

    /// Returns the number of decisions of each outcome and source, then of errors.
    fn numbers_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.decided.iter_mut().flatten().chain([&mut self.errors])
    }

    /// Returns the text of a gate, such as `a/redis=120 d/deny_cache=4 e=1`.
    pub(super) fn text(&self) -> String {
        let mut text = NumberText::default();
        for (outcome, counts) in OUTCOMES.iter().zip(&self.decided) {
            for (source, count) in Source::ALL.iter().zip(counts) {
                text.add(format_args!("{outcome}/{source}"), *count);
            }
        }
        text.add(format_args!("{}", format::ERRORS), self.errors);
        text.into_string()
    }
}

// Counters that all threads write. With a single copy, its cache line would move between cores at each write.

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

// A histogram of latencies. Each bucket ends at a power of two, so a quantile is right within a factor of two.

/// The bits of the first bound: the first bucket holds latencies of at most 16 µs.
const FIRST_BITS: u32 = 4;
/// The last bucket ends at 2^24 µs, 17 s, and also holds all longer latencies.
pub(super) const BUCKETS: usize = 21;

/// The number of latencies in each bucket.
#[cfg(any(feature = "admin", test))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    counts: [u64; BUCKETS],
}

#[cfg(any(feature = "admin", test))]
impl Histogram {
    /// Adds `count` latencies of `latency_us`.
    pub(crate) fn add(&mut self, latency_us: u64, count: u64) {
        let bucket = &mut self.counts[bucket_of(latency_us)];
        *bucket = bucket.saturating_add(count);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the latency in µs that `percent` of all latencies do not exceed; 0 if there is none. Assumes that
    /// the latencies of a bucket lie evenly between its bounds.
    pub(crate) fn percentile_us(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.count()) * u128::from(percent)).div_ceil(100);
        let mut before = 0_u128;
        for (bucket, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let rank = wanted.saturating_sub(before);
            if rank <= u128::from(count) {
                let lower = if bucket == 0 { 0 } else { bound_us(bucket - 1) };
                let width = u128::from(bound_us(bucket) - lower);
                return lower + (width * rank / u128::from(count)) as u64;
            }
            before += u128::from(count);
        }
        0
    }
}

/// Returns the bucket of a latency.
#[inline]
pub(super) fn bucket_of(latency_us: u64) -> usize {
    let bits = u64::BITS - latency_us.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BITS) as usize).min(BUCKETS - 1)
}

/// Returns the longest latency of a bucket, in µs.
pub(super) fn bound_us(bucket: usize) -> u64 {
    1 << (FIRST_BITS as usize + bucket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::gate_name::GateName;

    fn decision(source: Source, allowed: bool, remaining: u64) -> Decision {
        let gate = GateName::new("login").unwrap();
        Decision { remaining, ..Decision::fixed(gate, 100, allowed, source) }
    }

    #[test]
    fn counts_are_by_outcome_and_source_and_taken_once() {
        let counters = GateCounters::default();
        counters.count(&decision(Source::Redis, true, 20));
        counters.count(&decision(Source::Redis, true, 19));
        counters.count(&decision(Source::Lease, true, 1));
        counters.add_leased(7);
        counters.count(&decision(Source::DenyCache, false, 0));
        counters.count(&Decision { shadow: true, ..decision(Source::Redis, true, 0) });
        counters.count_error();
        assert!(!counters.is_taken());
        let counts = counters.take();
        assert_eq!(counts.text(), "a/redis=1 a/lease=7 n/redis=1 d/deny_cache=1 s/redis=1 e=1");
        assert_eq!(counts.total(), 12);
        assert!(counters.is_taken());
        assert_eq!(counters.take(), GateCounts::default());
    }

    #[test]
    fn decisions_counted_while_others_are_taken_are_counted_once() {
        let counters = GateCounters::default();
        let decision = decision(Source::Redis, true, 50);
        let mut taken = GateCounts::default();
        std::thread::scope(|scope| {
            let counts = || (0..1_000).for_each(|_| counters.count(&decision));
            let threads: Vec<_> = (0..20).map(|_| scope.spawn(counts)).collect();
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                taken.add(counters.take());
            }
        });
        taken.add(counters.take());
        assert_eq!(taken.text(), "a/redis=20000");
    }
}

#[cfg(test)]
mod sharded_tests {
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

#[cfg(test)]
mod latency_tests {
    use super::*;

    #[test]
    fn each_bound_is_the_last_latency_of_its_bucket() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(bound_us(bucket)), bucket);
            assert_eq!(bucket_of(bound_us(bucket) + 1), (bucket + 1).min(BUCKETS - 1));
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn percentiles_are_within_the_bucket_of_their_rank() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.count(), histogram.percentile_us(50)), (0, 0));
        histogram.add(100, 98);
        histogram.add(5_000, 2);
        assert_eq!(histogram.count(), 100);
        let (p50, p98, p99) =
            (histogram.percentile_us(50), histogram.percentile_us(98), histogram.percentile_us(99));
        assert!((64..=128).contains(&p50), "{p50}");
        assert_eq!(p98, 128);
        assert!((4_096..=8_192).contains(&p99), "{p99}");
    }

    #[test]
    fn counts_saturate() {
        let mut histogram = Histogram::default();
        histogram.add(1, u64::MAX);
        histogram.add(1, 1);
        histogram.add(1_000, u64::MAX);
        assert_eq!(histogram.count(), u64::MAX);
        assert_eq!(histogram.percentile_us(50), 8);
    }
}

//! The counters of one gate.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::{self, NumberText};
use super::sharded::Sharded;
use crate::decision::{Decision, Source};
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

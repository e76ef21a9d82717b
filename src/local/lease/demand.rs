//! Counts how often keys without a lease are checked, in bounded memory. Counts restart with each period. Two
//! keys that share a counter only delay each other's lease.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of admitted checks within one hold that starts a lease. With fewer, a lease would not save the
/// two calls that it costs.
const LEASE_AFTER: u64 = 4;

const MAX_COUNTERS: usize = 1 << 16;

/// Each counter holds the period (32 bits), a part of the key's hash (16 bits) and the number of checks (16
/// bits).
pub(super) struct Demand(Box<[AtomicU64]>);

impl Demand {
    pub(super) fn new(max_keys: usize) -> Self {
        let counters = max_keys.next_power_of_two().clamp(64, MAX_COUNTERS);
        Self((0..counters).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a check. Returns true once per period: when a lease should start.
    pub(super) fn record(&self, hash: u64, period: u64) -> bool {
        let counter = &self.0[hash as usize & (self.0.len() - 1)];
        let owner = (period << 32) | (hash >> 16 & 0xffff) << 16;
        let count = |old: u64| match old & !0xffff == owner {
            true => owner | ((old & 0xffff) + 1).min(LEASE_AFTER + 1),
            false => owner | 1,
        };
        let old = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(count(old)));
        old.is_ok_and(|old| count(old) == owner | LEASE_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::Demand;

    #[test]
    fn the_fourth_check_of_a_period_starts_a_lease_once() {
        let demand = Demand::new(100);
        for period in [1, 2, 9] {
            let is_due: Vec<bool> = (0..10).map(|_| demand.record(77, period)).collect();
            assert_eq!(is_due.iter().position(|is_due| *is_due), Some(3));
            assert_eq!(is_due.iter().filter(|is_due| **is_due).count(), 1);
        }
        // Another hash with the same counter restarts the count.
        assert!(!demand.record(77, 10) && !demand.record(77 | 1 << 20, 10) && !demand.record(77, 10));
    }
}

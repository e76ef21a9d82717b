//! How often keys without a lease are asked for: counts of bounded size that
//! forget. Two keys that share a place only delay each other's lease.

use std::sync::atomic::{AtomicU64, Ordering};

/// So many admitted asks within one hold begin a lease: fewer would not repay
/// the two calls that a lease costs.
const ASKS: u64 = 4;

const MOST_PLACES: usize = 1 << 16;

/// Each place: the period (32 bits), what tells keys apart (16), asks (16).
pub(super) struct Demand(Box<[AtomicU64]>);

impl Demand {
    pub(super) fn new(max_keys: usize) -> Self {
        let places = max_keys.next_power_of_two().clamp(64, MOST_PLACES);
        Self((0..places).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts an ask. True once in a period: when it is time for a lease.
    pub(super) fn asked(&self, hash: u64, period: u64) -> bool {
        let place = &self.0[hash as usize & (self.0.len() - 1)];
        let whose = (period << 32) | (hash >> 16 & 0xffff) << 16;
        let count = |old: u64| match old & !0xffff == whose {
            true => whose | ((old & 0xffff) + 1).min(ASKS + 1),
            false => whose | 1,
        };
        let old = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(count(old)));
        old.is_ok_and(|old| count(old) == whose | ASKS)
    }
}

#[cfg(test)]
mod tests {
    use super::Demand;

    #[test]
    fn the_fourth_ask_of_a_period_says_so_once() {
        let demand = Demand::new(100);
        for period in [1, 2, 9] {
            let said: Vec<bool> = (0..10).map(|_| demand.asked(77, period)).collect();
            assert_eq!(said.iter().position(|said| *said), Some(3));
            assert_eq!(said.iter().filter(|said| **said).count(), 1);
        }
        // One of another hash in the same place begins anew.
        assert!(!demand.asked(77, 10) && !demand.asked(77 | 1 << 20, 10) && !demand.asked(77, 10));
    }
}

//! The leased keys of one gate: slots in open addressing, of bounded number.
//! Read by all threads without a lock, written by the keeper alone.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::packed_key::PackedKey;
use super::slot::Slot;

/// A key is in one of so many slots from where it belongs, or has no lease. The
/// table is at most two thirds full, so that this does not happen by chance.
const FURTHEST: usize = 64;

pub(super) struct Table {
    slots: Box<[Slot]>,
    /// As far as any key has ever been put from where it belongs.
    furthest: AtomicUsize,
}

impl Table {
    pub(super) fn new(max_keys: usize) -> Self {
        let slots = (max_keys * 3 / 2).next_power_of_two().max(2 * FURTHEST);
        Self { slots: (0..slots).map(|_| Slot::default()).collect(), furthest: AtomicUsize::new(0) }
    }

    /// The slots that may be this key's, each with its number.
    #[inline]
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = (u32, &Slot)> {
        self.from(hash, self.furthest.load(Ordering::Acquire) + 1)
    }

    pub(super) fn find(&self, hash: u64, key: &PackedKey) -> Option<(u32, &Slot)> {
        self.candidates(hash).find(|(_, slot)| slot.is_of(key))
    }

    #[inline]
    pub(super) fn slot(&self, number: u32) -> &Slot {
        // Numbers come from here.
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Gives a key that has none a slot, if there is one.
    pub(super) fn insert(&self, hash: u64, key: &PackedKey) -> Option<(u32, &Slot)> {
        let (step, found) = self.from(hash, FURTHEST).enumerate().find(|(_, (_, slot))| slot.is_vacant())?;
        self.furthest.fetch_max(step, Ordering::AcqRel);
        found.1.assign(key);
        Some(found)
    }

    #[inline]
    fn from(&self, hash: u64, steps: usize) -> impl Iterator<Item = (u32, &Slot)> {
        let mask = self.slots.len() - 1;
        (0..steps).map(move |step| {
            let place = (hash as usize).wrapping_add(step) & mask;
            (place as u32, &self.slots[place])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{PackedKey, Table};

    #[test]
    fn what_is_in_is_found_and_what_has_left_is_not() {
        let table = Table::new(1_000);
        let keys: Vec<PackedKey> = (0..1_000u64).map(|key| PackedKey::of(&key.to_le_bytes())).collect();
        let mut inside = vec![None; keys.len()];
        for step in 0..20_000u64 {
            let at = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % keys.len();
            let hash = keys[at].hash([3, 5]);
            assert_eq!(table.find(hash, &keys[at]).map(|(number, _)| number), inside[at]);
            inside[at] = match inside[at] {
                Some(number) => {
                    table.slot(number).vacate();
                    None
                }
                None => Some(table.insert(hash, &keys[at]).unwrap().0),
            };
        }
    }
}

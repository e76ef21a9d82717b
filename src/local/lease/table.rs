//! The leased keys of one gate: a bounded open-addressing table of slots. All threads read it without a lock;
//! only the worker inserts and removes keys.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::packed_key::PackedKey;
use super::slot::Slot;

/// The maximum number of slots probed from a key's first slot. A key without a vacant slot among them gets no
/// lease. The table is at most two thirds full, so this does not happen by chance.
const MAX_PROBES: usize = 64;

pub(super) struct LeaseTable {
    slots: Box<[Slot]>,
    /// The largest distance from its first slot at which any key was ever inserted.
    furthest: AtomicUsize,
}

impl LeaseTable {
    pub(super) fn new(max_keys: usize) -> Self {
        let slots = (max_keys * 3 / 2).next_power_of_two().max(2 * MAX_PROBES);
        Self { slots: (0..slots).map(|_| Slot::default()).collect(), furthest: AtomicUsize::new(0) }
    }

    /// Returns the slots that may belong to this key, each with its number.
    #[inline]
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = (u32, &Slot)> {
        self.probe(hash, self.furthest.load(Ordering::Acquire) + 1)
    }

    pub(super) fn find(&self, hash: u64, key: &PackedKey) -> Option<(u32, &Slot)> {
        self.candidates(hash).find(|(_, slot)| slot.is_of(key))
    }

    #[inline]
    pub(super) fn slot(&self, number: u32) -> &Slot {
        // Numbers are issued by this table. The mask only removes the bounds check.
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Assigns a vacant slot to a key that has none. Returns `None` if all probed slots are taken.
    pub(super) fn insert(&self, hash: u64, key: &PackedKey) -> Option<(u32, &Slot)> {
        let (step, found) =
            self.probe(hash, MAX_PROBES).enumerate().find(|(_, (_, slot))| slot.is_vacant())?;
        self.furthest.fetch_max(step, Ordering::AcqRel);
        found.1.assign(key);
        Some(found)
    }

    #[inline]
    fn probe(&self, hash: u64, steps: usize) -> impl Iterator<Item = (u32, &Slot)> {
        let mask = self.slots.len() - 1;
        (0..steps).map(move |step| {
            let slot = (hash as usize).wrapping_add(step) & mask;
            (slot as u32, &self.slots[slot])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{LeaseTable, PackedKey};

    #[test]
    fn inserted_keys_are_found_and_removed_keys_are_not() {
        let table = LeaseTable::new(1_000);
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

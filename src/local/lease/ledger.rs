//! Decides the next step for each lease: arithmetic that never waits. Only the ledger, with its blocks,
//! assigns, opens and closes slots.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::blocks::{Blocks, Refilled};
use super::lease_options::add;
use super::leased_gate::LeasedGate;
use super::leased_key::{EncodedKey, LeaseEntry};
use super::packed_key::PackedKey;
use super::queue::LeaseRequest;
use super::slot::Slot;
use crate::store::Target;

/// The maximum number of keys maintained before requests are served again.
const SWEEP: usize = 512;

pub(super) struct Ledger {
    shared: Arc<LeasedGate>,
    /// By slot number; at most `max_keys` entries.
    entries: HashMap<u32, LeaseEntry>,
    /// The time of the next maintenance and its slot; one per entry.
    due: BTreeSet<(u64, u32)>,
    /// Contains each slot at most once: see `LeaseEntry::is_refilling`.
    refills: VecDeque<u32>,
    pub(super) blocks: Blocks,
    /// The maximum time that a block can be held.
    reach_us: u64,
}

/// A block to be taken.
#[derive(Debug)]
pub(super) struct Refill {
    pub(super) slot: u32,
    pub(super) target: Target,
    pub(super) units: u64,
}

/// # For the worker
impl Ledger {
    pub(super) fn new(shared: Arc<LeasedGate>) -> Self {
        let algorithm = shared.info.quota.kind().algorithm();
        // Units that end with their window are held for at most its length.
        let window_us = algorithm.leased_until(0).map_or(u64::MAX, |_| algorithm.window_us());
        Self {
            reach_us: shared.terms.hold_us.min(window_us),
            blocks: Blocks::new(shared.clone()),
            shared,
            entries: HashMap::new(),
            due: BTreeSet::new(),
            refills: VecDeque::new(),
        }
    }

    pub(super) fn shared(&self) -> &Arc<LeasedGate> {
        &self.shared
    }

    /// Returns the time of the next maintenance.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        self.due.first().map(|&(due_us, _)| due_us)
    }

    /// Serves the requests of spenders.
    pub(super) fn serve(&mut self, now_us: u64) {
        for request in self.shared.queue.take() {
            match request {
                LeaseRequest::Refill { slot, cost } => self.want(slot, cost, now_us),
                LeaseRequest::Begin { key, packed, cost } => self.begin(key, packed, cost, now_us),
            }
        }
    }

    /// Returns the next blocks to take in one call.
    pub(super) fn next_refills(&mut self, max_refills: usize, now_us: u64) -> Vec<Refill> {
        let mut refills = Vec::new();
        while refills.len() < max_refills
            && let Some(number) = self.refills.pop_front()
        {
            refills.extend(self.refill(number, now_us));
        }
        refills
    }

    /// Opens the block that was taken. If the store granted none, increases the backoff.
    pub(super) fn arrived(&mut self, number: u32, sent_us: u64, taken: Option<Refilled>, now_us: u64) {
        let Some(mut entry) = self.entries.remove(&number) else { return };
        let shared = self.shared.clone();
        let slot = shared.table().slot(number);
        entry.is_refilling = false;
        match taken.filter(|taken| taken.units > 0) {
            Some(taken) => {
                entry.backoff_us = 0;
                entry.need = 0;
                self.blocks.install(&mut entry, slot, sent_us, taken, now_us);
                slot.no_longer_wanted();
            }
            // Leaves the refill wanted until then, so that no spender requests another one.
            None => {
                let least = (self.reach_us / 8).max(1_000);
                entry.backoff_us = (entry.backoff_us * 2).clamp(least, least * 32);
                entry.cools_until_us = now_us + entry.backoff_us;
            }
        }
        self.keep(number, entry, slot, now_us);
    }

    /// Maintains the leases that are due. Returns whether more are due at once.
    pub(super) fn sweep(&mut self, now_us: u64) -> bool {
        for _ in 0..SWEEP {
            match self.due.first().copied() {
                Some((due_us, number)) if due_us <= now_us => {
                    self.due.pop_first();
                    self.maintain(number, now_us);
                }
                _ => return false,
            }
        }
        true
    }

    /// Closes all leases and gives their units back. The units of takes in flight follow when they arrive.
    pub(super) fn close_all(&mut self) {
        let shared = self.shared.clone();
        for (number, mut entry) in std::mem::take(&mut self.entries) {
            let slot = shared.table().slot(number);
            self.blocks.close(&mut entry, slot, u64::MAX);
            if entry.is_refilling {
                self.entries.insert(number, entry);
            } else {
                self.release(slot);
            }
        }
        self.due.clear();
        self.refills.clear();
    }
}

/// # Steps
impl Ledger {
    fn begin(&mut self, key: EncodedKey, packed: PackedKey, cost: u32, now_us: u64) {
        let shared = self.shared.clone();
        let (table, hash) = (shared.table(), shared.hash(&packed));
        if let Some((number, slot)) = table.find(hash, &packed) {
            if slot.want() {
                self.want(number, cost, now_us);
            }
            return;
        }
        if self.entries.len() >= shared.terms.max_keys {
            return;
        }
        if let Some((number, _)) = table.insert(hash, &packed) {
            add(&shared.counters.keys, 1);
            self.entries.insert(number, LeaseEntry::new(key, shared.terms.max_units));
            self.want(number, cost, now_us);
        }
    }

    fn want(&mut self, number: u32, cost: u32, now_us: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.need = entry.need.max(cost);
        if entry.is_refilling || entry.cools_until_us > now_us {
            return;
        }
        let left = self.shared.table().slot(number).left();
        entry.grow(left, self.reach_us, now_us, self.shared.terms.max_units);
        entry.is_refilling = true;
        self.refills.push_back(number);
    }

    /// Returns the block to take, sized so that the key never holds more than `max_units`. Returns `None` if
    /// the lease has enough units by now.
    fn refill(&mut self, number: u32, now_us: u64) -> Option<Refill> {
        let shared = self.shared.clone();
        let slot = shared.table().slot(number);
        let mut entry = self.entries.remove(&number)?;
        let (max_units, need) = (shared.terms.max_units, entry.need.max(1));
        let held = entry.live(slot.left(), now_us);
        let mut units = entry.next_size().min(max_units.saturating_sub(held));
        if units < need {
            if held >= need {
                // The units have arrived since this refill was requested.
                entry.is_refilling = false;
                slot.no_longer_wanted();
                self.keep(number, entry, slot, now_us);
                return None;
            }
            // The held units do not suffice and leave no room for the cost: gives them back first.
            self.blocks.close(&mut entry, slot, u64::MAX);
            units = entry.next_size().min(max_units);
        }
        let target = shared.target(&entry.key);
        self.entries.insert(number, entry);
        Some(Refill { slot: number, target, units: units.into() })
    }

    fn maintain(&mut self, number: u32, now_us: u64) {
        let Some(mut entry) = self.entries.remove(&number) else { return };
        let shared = self.shared.clone();
        let slot = shared.table().slot(number);
        if entry.cools_until_us > 0 && entry.cools_until_us <= now_us {
            entry.cools_until_us = 0;
            slot.no_longer_wanted();
        }
        let (opened, newest) = (entry.opened, entry.newest);
        if newest.units > 0 && entry.ends_us(slot.left()).is_some_and(|ends_us| ends_us <= now_us) {
            let left = self.blocks.close(&mut entry, slot, now_us);
            if entry.newest.units == 0 {
                entry.was_spent |= left <= newest.units / 2;
                let is_untouched = left == opened && !entry.was_spent;
                if !entry.is_refilling && is_untouched {
                    return self.release(slot);
                }
                if !entry.was_spent {
                    entry.size = (entry.size / 2).max(1);
                }
            }
        } else if newest.units == 0 && !entry.is_refilling && entry.cools_until_us == 0 && !entry.was_spent {
            // No caller has requested a refill since.
            return self.release(slot);
        }
        let is_idle = entry.newest.units == 0 && !entry.is_refilling && entry.cools_until_us == 0;
        let renew = is_idle && std::mem::take(&mut entry.was_spent) && slot.want();
        self.keep(number, entry, slot, now_us);
        if renew {
            // The previous block was spent, so more checks are likely: refills ahead of them.
            self.want(number, 0, now_us);
        }
    }

    /// Keeps the entry until its units end, or until the backoff after an empty refill ends. Keeps an idle
    /// entry for as long as a block can be held.
    fn keep(&mut self, number: u32, mut entry: LeaseEntry, slot: &Slot, now_us: u64) {
        self.due.remove(&(entry.due_us, number));
        let cools = Some(entry.cools_until_us).filter(|cools_until_us| *cools_until_us > 0);
        let next = entry.ends_us(slot.left()).into_iter().chain(cools).min();
        entry.due_us = next.unwrap_or(now_us + self.reach_us);
        self.due.insert((entry.due_us, number));
        self.entries.insert(number, entry);
    }

    /// Vacates a slot, which must be closed.
    fn release(&self, slot: &Slot) {
        slot.vacate();
        self.shared.counters.keys.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes all leases if the worker ends early (with its runtime), so that their units cannot be spent. Counts
/// units that were not given back as stranded.
impl Drop for Ledger {
    fn drop(&mut self) {
        for entry in self.entries.values_mut() {
            entry.is_refilling = false;
        }
        self.close_all();
        self.shared.report_spent();
        let lost = self.shared.counters.returning.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.shared.strand(lost);
        }
    }
}

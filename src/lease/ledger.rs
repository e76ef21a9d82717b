//! What is to be done next for which lease: arithmetic without waiting. The one
//! writer of table and slots.

mod blocks;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;
use super::packed_key::PackedKey;
use super::queue::Request;
use super::shared::Shared;
use super::slot::Slot;
use crate::quota::Kind;
use crate::store::Target;

/// So many keys are looked after before asks are served again.
const SWEEP: usize = 512;

pub(super) struct Ledger {
    shared: Arc<Shared>,
    /// By the number of their slot; at most as many as keys may be leased.
    entries: HashMap<u32, Entry>,
    /// When to look after which slot; one for each.
    due: BTreeSet<(u64, u32)>,
    /// Each slot at most once: see `Entry::is_refilling`.
    refills: VecDeque<u32>,
    give_backs: VecDeque<GiveBack>,
    /// The longest that a block can be held.
    reach_us: u64,
}

/// A block to be taken.
#[derive(Debug)]
pub(super) struct Refill {
    pub(super) slot: u32,
    pub(super) target: Target,
    pub(super) units: u64,
}

/// What the store answered to a refill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) units: u64,
    pub(super) stamp_us: u64,
    /// How long the window goes on in which they were charged, where that ends a
    /// lease.
    pub(super) rest_us: Option<u64>,
    pub(super) reset_after_us: u64,
}

/// Units to be given back.
#[derive(Debug)]
pub(super) struct GiveBack {
    pub(super) target: Target,
    pub(super) units: u64,
    pub(super) stamp_us: u64,
}

/// # For the worker
impl Ledger {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let window_us = match *shared.info.quota.kind() {
            Kind::FixedWindow(fixed) => fixed.window_us,
            Kind::SlidingCounter(counter) => counter.window_us,
            _ => u64::MAX,
        };
        Self {
            reach_us: shared.terms.hold_us.min(window_us),
            shared,
            entries: HashMap::new(),
            due: BTreeSet::new(),
            refills: VecDeque::new(),
            give_backs: VecDeque::new(),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// When there is something to do, if nobody asks.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        self.due.first().map(|&(due_us, _)| due_us)
    }

    /// Serves what spenders asked for.
    pub(super) fn serve(&mut self, now_us: u64) {
        for request in self.shared.queue.take() {
            match request {
                Request::Refill { slot, cost } => self.want(slot, cost, now_us),
                Request::Begin { key, cost } => self.begin(key, cost, now_us),
            }
        }
    }

    /// The next blocks to take, in one call.
    pub(super) fn next_refills(&mut self, most: usize, now_us: u64) -> Vec<Refill> {
        let mut refills = Vec::new();
        while refills.len() < most
            && let Some(number) = self.refills.pop_front()
        {
            refills.extend(self.refill(number, now_us));
        }
        refills
    }

    /// Opens the block that was taken, or waits for longer where there was none.
    pub(super) fn arrived(&mut self, number: u32, sent_us: u64, taken: Option<Taken>, now_us: u64) {
        let Some(mut entry) = self.entries.remove(&number) else { return };
        let shared = self.shared.clone();
        let slot = shared.table().slot(number);
        entry.is_refilling = false;
        match taken.filter(|taken| taken.units > 0) {
            Some(taken) => {
                entry.backoff_us = 0;
                entry.need = 0;
                self.install(&mut entry, slot, sent_us, taken, now_us);
                slot.no_longer_wanted();
            }
            // Stays wanted until then, so that nobody asks for another.
            None => {
                let least = (self.reach_us / 8).max(1_000);
                entry.backoff_us = (entry.backoff_us * 2).clamp(least, least * 32);
                entry.cools_until_us = now_us + entry.backoff_us;
            }
        }
        self.keep(number, entry, slot, now_us);
    }

    /// Closes what has ended. Whether there is more to do at once.
    pub(super) fn sweep(&mut self, now_us: u64) -> bool {
        for _ in 0..SWEEP {
            match self.due.first().copied() {
                Some((due_us, number)) if due_us <= now_us => {
                    self.due.pop_first();
                    self.look_after(number, now_us);
                }
                _ => return false,
            }
        }
        true
    }

    /// Closes everything, to be given back; what is under way here follows as it
    /// arrives.
    pub(super) fn close_all(&mut self) {
        let shared = self.shared.clone();
        for (number, mut entry) in std::mem::take(&mut self.entries) {
            let slot = shared.table().slot(number);
            self.close(&mut entry, slot, u64::MAX);
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

/// # Steps of it
impl Ledger {
    fn begin(&mut self, key: Box<[u8]>, cost: u32, now_us: u64) {
        let shared = self.shared.clone();
        let (table, packed) = (shared.table(), PackedKey::of(&key));
        let hash = shared.hash(&packed);
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
            self.entries.insert(number, Entry::new(key, shared.terms.max_units));
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

    /// How much to take, so that never more than the most is held.
    fn refill(&mut self, number: u32, now_us: u64) -> Option<Refill> {
        let shared = self.shared.clone();
        let slot = shared.table().slot(number);
        let mut entry = self.entries.remove(&number)?;
        let (most, need) = (shared.terms.max_units, entry.need.max(1));
        let held = entry.live(slot.left(), now_us);
        let mut units = entry.wish().min(most.saturating_sub(held));
        if units < need {
            if held >= need {
                // It came since it was asked for.
                entry.is_refilling = false;
                slot.no_longer_wanted();
                self.keep(number, entry, slot, now_us);
                return None;
            }
            // What is there is in the way of what is needed.
            self.close(&mut entry, slot, u64::MAX);
            units = entry.wish().min(most);
        }
        let target = self.target(&entry.key);
        self.entries.insert(number, entry);
        Some(Refill { slot: number, target, units: units.into() })
    }

    fn look_after(&mut self, number: u32, now_us: u64) {
        let Some(mut entry) = self.entries.remove(&number) else { return };
        let shared = self.shared.clone();
        let slot = shared.table().slot(number);
        if entry.cools_until_us > 0 && entry.cools_until_us <= now_us {
            entry.cools_until_us = 0;
            slot.no_longer_wanted();
        }
        let (opened, newest) = (entry.opened, entry.newest);
        if newest.units > 0 && entry.ends_us(slot.left()).is_some_and(|ends_us| ends_us <= now_us) {
            let left = self.close(&mut entry, slot, now_us);
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
            // Nobody has asked since.
            return self.release(slot);
        }
        let is_idle = entry.newest.units == 0 && !entry.is_refilling && entry.cools_until_us == 0;
        let again = is_idle && std::mem::take(&mut entry.was_spent) && slot.want();
        self.keep(number, entry, slot, now_us);
        if again {
            // It will be asked for again: ahead of that.
            self.want(number, 0, now_us);
        }
    }

    /// Keeps it until its units end, or a wait after a refill in vain; an idle
    /// one for as long as a block would be held.
    fn keep(&mut self, number: u32, mut entry: Entry, slot: &Slot, now_us: u64) {
        self.due.remove(&(entry.due_us, number));
        let cools = Some(entry.cools_until_us).filter(|cools_until_us| *cools_until_us > 0);
        let next = entry.ends_us(slot.left()).into_iter().chain(cools).min();
        entry.due_us = next.unwrap_or(now_us + self.reach_us);
        self.due.insert((entry.due_us, number));
        self.entries.insert(number, entry);
    }

    /// Lets a slot go. It must be closed.
    fn release(&self, slot: &Slot) {
        slot.vacate();
        self.shared.counters.keys.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker that ends before its time (with its runtime) leaves nothing that
/// could be spent, and what it could not give back is counted.
impl Drop for Ledger {
    fn drop(&mut self) {
        for entry in self.entries.values_mut() {
            entry.is_refilling = false;
        }
        self.close_all();
        self.shared.tell_spent();
        let lost = self.shared.counters.returning.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.shared.strand(lost);
        }
    }
}

fn add(counter: &AtomicU64, units: u64) {
    counter.fetch_add(units, Ordering::Relaxed);
}

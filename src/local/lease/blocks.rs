//! Opens and closes blocks, and queues the units to be given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::lease_options::add;
use super::leased_gate::LeasedGate;
use super::leased_key::{EncodedKey, LeaseBlock, LeaseEntry};
use super::slot::{Slot, Term};
use crate::observe::observer::Event;
use crate::store::Target;

/// The blocks of a gate's leases. Counts the fate of their units.
pub(super) struct Blocks {
    shared: Arc<LeasedGate>,
    give_backs: VecDeque<GiveBack>,
}

/// The store's reply to a refill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refilled {
    pub(super) units: u64,
    pub(super) stamp_us: u64,
    /// The remaining time of the window in which the units were charged, if the lease ends with the window.
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

impl Blocks {
    pub(super) fn new(shared: Arc<LeasedGate>) -> Self {
        Self { shared, give_backs: VecDeque::new() }
    }

    pub(super) fn next_give_back(&mut self) -> Option<GiveBack> {
        self.give_backs.pop_front()
    }

    /// Records the result of a refund.
    pub(super) fn gave_back(&self, units: u64, was_returned: bool) {
        let counters = &self.shared.counters;
        counters.returning.fetch_sub(units, Ordering::Relaxed);
        if was_returned {
            add(&counters.returned, units);
            self.shared.events.notify(&Event::Returned { gate: &self.shared.info.name, units });
        } else {
            self.shared.strand(units);
        }
    }

    /// Counts the units of all refunds that are not sent yet as stranded.
    pub(super) fn strand_the_rest(&mut self) {
        while let Some(give_back) = self.next_give_back() {
            self.gave_back(give_back.units, false);
        }
    }

    /// Opens a taken block. The previous newest block becomes the older one.
    pub(super) fn install(
        &mut self,
        entry: &mut LeaseEntry,
        slot: &Slot,
        sent_us: u64,
        taken: Refilled,
        now_us: u64,
    ) {
        let shared = &self.shared;
        add(&shared.counters.taken, taken.units);
        shared.events.notify(&Event::Leased { gate: &shared.info.name, units: taken.units });
        let hold_us = shared.terms.hold_us;
        let block = LeaseBlock {
            units: u32::try_from(taken.units).unwrap_or(u32::MAX),
            since_us: sent_us,
            ends_us: sent_us + taken.rest_us.map_or(hold_us, |rest_us| rest_us.min(hold_us)),
            stamp_us: taken.stamp_us,
            reset_us: sent_us + taken.reset_after_us,
        };
        if block.ends_us <= now_us || shared.has_ended() {
            self.give_back(&entry.key, block.units, block.stamp_us);
            return;
        }
        let left = slot.close();
        self.account(entry, left);
        let [older, mut newest] = entry.parts(left);
        entry.was_spent |= entry.newest.units > 0 && newest <= entry.newest.units / 2;
        self.give_back(&entry.key, older, entry.older.stamp_us);
        if entry.newest.ends_us <= now_us {
            self.give_back(&entry.key, newest, entry.newest.stamp_us);
            newest = 0;
        }
        entry.older = LeaseBlock { units: newest, ..entry.newest };
        entry.newest = block;
        self.open(entry, slot, newest + block.units);
    }

    /// Closes the slot, gives back the units that have ended, and reopens it with the rest. Always gives back
    /// the older block. Returns the units that were left before.
    pub(super) fn close(&mut self, entry: &mut LeaseEntry, slot: &Slot, now_us: u64) -> u32 {
        let left = slot.close();
        self.account(entry, left);
        let [older, newest] = entry.parts(left);
        self.give_back(&entry.key, older, entry.older.stamp_us);
        entry.older = LeaseBlock::default();
        if entry.newest.ends_us <= now_us || newest == 0 {
            self.give_back(&entry.key, newest, entry.newest.stamp_us);
            entry.newest = LeaseBlock::default();
        } else {
            entry.newest.units = newest;
            self.open(entry, slot, newest);
        }
        left
    }

    fn open(&mut self, entry: &mut LeaseEntry, slot: &Slot, units: u32) {
        let (older, newest) = (entry.older, entry.newest);
        let oldest = if older.units > 0 { older } else { newest };
        let term = Term {
            newest: newest.units,
            newest_ends_us: newest.ends_us,
            older_ends_us: oldest.ends_us,
            stamp_us: oldest.stamp_us,
            reset_us: newest.reset_us,
        };
        entry.opened = units;
        add(&self.shared.counters.opened, units.into());
        slot.open(units, term);
    }

    /// Counts the units spent since the slot was opened, given the number left.
    fn account(&mut self, entry: &mut LeaseEntry, left: u32) {
        let counters = &self.shared.counters;
        let opened = std::mem::take(&mut entry.opened);
        counters.opened.fetch_sub(opened.into(), Ordering::Relaxed);
        add(&counters.spent, u64::from(opened - left.min(opened)));
    }

    /// Queues units to be given back.
    fn give_back(&mut self, key: &EncodedKey, units: u32, stamp_us: u64) {
        if units == 0 {
            return;
        }
        // Each key has at most two blocks. More refunds accumulate only while the store grants takes but does
        // not answer refunds.
        if self.give_backs.len() >= self.shared.terms.max_keys.saturating_mul(2) {
            self.shared.strand(units.into());
            return;
        }
        add(&self.shared.counters.returning, units.into());
        let target = self.shared.target(key);
        self.give_backs.push_back(GiveBack { target, units: units.into(), stamp_us });
    }
}

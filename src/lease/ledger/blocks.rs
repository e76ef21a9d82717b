//! Opening blocks, closing them, and counting what becomes of their units.

use std::sync::atomic::Ordering;

use super::super::entry::{Block, Entry};
use super::super::slot::{Slot, Term};
use super::{GiveBack, Ledger, Taken, add};
use crate::store::Target;

/// # Giving back
impl Ledger {
    pub(in crate::lease) fn next_give_back(&mut self) -> Option<GiveBack> {
        self.give_backs.pop_front()
    }

    /// What became of a give-back.
    pub(in crate::lease) fn gave_back(&self, units: u64, is_done: bool) {
        let counters = &self.shared.counters;
        counters.returning.fetch_sub(units, Ordering::Relaxed);
        if is_done {
            add(&counters.returned, units);
            self.shared.tell(|observer, gate| observer.returned(gate, units));
        } else {
            self.shared.strand(units);
        }
    }

    /// What was not sent yet cannot be given back.
    pub(in crate::lease) fn strand_the_rest(&mut self) {
        while let Some(give_back) = self.next_give_back() {
            self.gave_back(give_back.units, false);
        }
    }
}

/// # Opening and closing
impl Ledger {
    /// The newest block becomes the older one.
    pub(super) fn install(
        &mut self,
        entry: &mut Entry,
        slot: &Slot,
        sent_us: u64,
        taken: Taken,
        now_us: u64,
    ) {
        let shared = self.shared.clone();
        add(&shared.counters.taken, taken.units);
        shared.tell(|observer, gate| observer.leased(gate, taken.units));
        let hold_us = shared.terms.hold_us;
        let block = Block {
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
        entry.older = Block { units: newest, ..entry.newest };
        entry.newest = block;
        self.open(entry, slot, newest + block.units);
    }

    /// Closes the slot, gives back what has ended, opens it with the rest. What
    /// was left before.
    pub(super) fn close(&mut self, entry: &mut Entry, slot: &Slot, now_us: u64) -> u32 {
        let left = slot.close();
        self.account(entry, left);
        let [older, newest] = entry.parts(left);
        self.give_back(&entry.key, older, entry.older.stamp_us);
        entry.older = Block::default();
        if entry.newest.ends_us <= now_us || newest == 0 {
            self.give_back(&entry.key, newest, entry.newest.stamp_us);
            entry.newest = Block::default();
        } else {
            entry.newest.units = newest;
            self.open(entry, slot, newest);
        }
        left
    }

    fn open(&mut self, entry: &mut Entry, slot: &Slot, units: u32) {
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

    /// Of what was open, so much is left.
    fn account(&mut self, entry: &mut Entry, left: u32) {
        let counters = &self.shared.counters;
        let opened = std::mem::take(&mut entry.opened);
        counters.opened.fetch_sub(opened.into(), Ordering::Relaxed);
        add(&counters.spent, u64::from(opened - left.min(opened)));
    }

    /// Queues units to be given back.
    fn give_back(&mut self, key: &[u8], units: u32, stamp_us: u64) {
        if units == 0 {
            return;
        }
        // Two for each key; more can only pile up while the store takes without
        // taking back.
        if self.give_backs.len() >= self.shared.terms.max_keys.saturating_mul(2) {
            self.shared.strand(units.into());
            return;
        }
        add(&self.shared.counters.returning, units.into());
        let target = self.target(key);
        self.give_backs.push_back(GiveBack { target, units: units.into(), stamp_us });
    }

    pub(super) fn target(&self, key: &[u8]) -> Target {
        Target::new(&self.shared.info, key, None)
    }
}

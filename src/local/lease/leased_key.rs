//! The ledger's state of one leased key.

use crate::key::HashTag;

/// The size of a key's first block.
const INITIAL_UNITS: u32 = 2;

/// A key as Redis knows it, without the prefix of its gate: at most 200 bytes, however long the key is.
#[derive(Debug)]
pub(super) struct EncodedKey {
    pub(super) text: Box<str>,
    pub(super) hash_tag: HashTag,
}

#[derive(Debug)]
pub(super) struct LeaseEntry {
    pub(super) key: EncodedKey,
    /// The planned size of the next block.
    pub(super) size: u32,
    /// The largest cost for which the lease had too few units.
    pub(super) need: u32,
    /// Whether a refill is queued or in flight.
    pub(super) is_refilling: bool,
    /// Whether a replaced or ended block was at least half spent.
    pub(super) was_spent: bool,
    /// The units with which the slot was last opened: those of `older` and `newest`.
    pub(super) opened: u32,
    pub(super) older: LeaseBlock,
    pub(super) newest: LeaseBlock,
    /// The earliest time of the next refill, after a refill that took no units. 0 if there was none.
    pub(super) cools_until_us: u64,
    pub(super) backoff_us: u64,
    /// The time of the next maintenance.
    pub(super) due_us: u64,
}

/// Units that were taken together. The default is an empty block that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseBlock {
    pub(super) units: u32,
    /// The local time at which its take was sent.
    pub(super) since_us: u64,
    pub(super) ends_us: u64,
    pub(super) stamp_us: u64,
    pub(super) reset_us: u64,
}

impl LeaseEntry {
    pub(super) fn new(key: EncodedKey, max_units: u32) -> Self {
        Self {
            key,
            size: INITIAL_UNITS.min(max_units),
            need: 0,
            is_refilling: false,
            was_spent: false,
            opened: 0,
            older: LeaseBlock::default(),
            newest: LeaseBlock::default(),
            cools_until_us: 0,
            backoff_us: 0,
            due_us: 0,
        }
    }

    /// Splits the units left into those of the older and of the newest block. The older block is spent first.
    pub(super) fn parts(&self, left: u32) -> [u32; 2] {
        let newest = left.min(self.newest.units);
        [left - newest, newest]
    }

    /// Returns how many of the units left can still be spent.
    pub(super) fn live(&self, left: u32, now_us: u64) -> u32 {
        let [older, newest] = self.parts(left);
        let live = |block: LeaseBlock, units| if block.ends_us > now_us { units } else { 0 };
        live(self.older, older) + live(self.newest, newest)
    }

    /// Returns the number of units to take next.
    pub(super) fn next_size(&self) -> u32 {
        self.size.max(self.need.saturating_mul(2))
    }

    /// Doubles the size of the next block if this one was spent fast: half of it within a quarter of the time
    /// that it can be held, or all of it within half of that time.
    pub(super) fn grow(&mut self, left: u32, reach_us: u64, now_us: u64, max_units: u32) {
        let LeaseBlock { units, since_us, .. } = self.newest;
        let [_, left] = self.parts(left);
        let took_us = now_us.saturating_sub(since_us);
        let half_was_fast = left <= units / 2 && took_us <= reach_us / 4;
        let all_was_fast = left == 0 && took_us <= reach_us / 2;
        if units > 0 && (half_was_fast || all_was_fast) {
            self.size = self.size.saturating_mul(2).min(max_units);
        }
    }

    /// Returns the time at which the next of its units end, or `None` if there are none.
    pub(super) fn ends_us(&self, left: u32) -> Option<u64> {
        match self.parts(left) {
            _ if self.newest.units == 0 => None,
            [0, _] => Some(self.newest.ends_us),
            _ => Some(self.older.ends_us.min(self.newest.ends_us)),
        }
    }
}

//! What the ledger knows of one leased key.

/// A lease begins with so many units.
const FIRST: u32 = 2;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Box<[u8]>,
    /// Units of the next block.
    pub(super) size: u32,
    /// The largest cost that found too little.
    pub(super) need: u32,
    /// Queued or under way.
    pub(super) is_refilling: bool,
    /// A block that has been replaced was mostly spent.
    pub(super) was_spent: bool,
    /// Units that the slot was last opened with: those of `older`, then `newest`.
    pub(super) opened: u32,
    pub(super) older: Block,
    pub(super) newest: Block,
    /// After a refill in vain: no other one before this time; 0 if there was none.
    pub(super) cools_until_us: u64,
    pub(super) backoff_us: u64,
    /// When to look after it.
    pub(super) due_us: u64,
}

/// Units that were taken together. By default none, which have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) units: u32,
    /// When its take was sent, by the local clock.
    pub(super) since_us: u64,
    pub(super) ends_us: u64,
    pub(super) stamp_us: u64,
    pub(super) reset_us: u64,
}

impl Entry {
    pub(super) fn new(key: Box<[u8]>, most: u32) -> Self {
        Self {
            key,
            size: FIRST.min(most),
            need: 0,
            is_refilling: false,
            was_spent: false,
            opened: 0,
            older: Block::default(),
            newest: Block::default(),
            cools_until_us: 0,
            backoff_us: 0,
            due_us: 0,
        }
    }

    /// What is left of the older and of the newest block, if so much is left of
    /// both: the older one is spent first.
    pub(super) fn parts(&self, left: u32) -> [u32; 2] {
        let newest = left.min(self.newest.units);
        [left - newest, newest]
    }

    /// How much of it can still be spent.
    pub(super) fn live(&self, left: u32, now_us: u64) -> u32 {
        let [older, newest] = self.parts(left);
        let of = |block: Block, units| if block.ends_us > now_us { units } else { 0 };
        of(self.older, older) + of(self.newest, newest)
    }

    /// What to ask for.
    pub(super) fn wish(&self) -> u32 {
        self.size.max(self.need.saturating_mul(2))
    }

    /// Twice as much next time, where half a block went in a quarter of the time
    /// that it could have been held, or all of it in half of that.
    pub(super) fn grow(&mut self, left: u32, reach_us: u64, now_us: u64, most: u32) {
        let Block { units, since_us, .. } = self.newest;
        let [_, left] = self.parts(left);
        let took_us = now_us.saturating_sub(since_us);
        let half_was_fast = left <= units / 2 && took_us <= reach_us / 4;
        let all_was_fast = left == 0 && took_us <= reach_us / 2;
        if units > 0 && (half_was_fast || all_was_fast) {
            self.size = self.size.saturating_mul(2).min(most);
        }
    }

    /// When the next of its units end; `None` without any.
    pub(super) fn ends_us(&self, left: u32) -> Option<u64> {
        match self.parts(left) {
            _ if self.newest.units == 0 => None,
            [0, _] => Some(self.newest.ends_us),
            _ => Some(self.older.ends_us.min(self.newest.ends_us)),
        }
    }
}

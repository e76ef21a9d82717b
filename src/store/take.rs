//! The one primitive of a store: deciding and charging a group of keys in one atomic step.

use smallvec::SmallVec;

use super::target::Target;
use crate::algorithm::EXACT;
use crate::key::HashTag;
use crate::reference::Before;

/// One gate's part in a group.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) target: Target,
    pub(crate) cost: u64,
    /// The longest delay that the caller accepts; always `None` except for a leaky bucket.
    pub(crate) max_delay_us: Option<u64>,
}

/// A unit of decision: `n` equal checks, each of which needs every item.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) items: SmallVec<[Item; 1]>,
    /// 0 peeks.
    pub(crate) n: u64,
}

impl Group {
    /// Makes a group of one item. A cost of 0 makes it a peek at one unit.
    pub(crate) fn of_one(item: Item) -> Self {
        let n = u64::from(item.cost > 0);
        Self { items: SmallVec::from_buf([Item { cost: item.cost.max(1), ..item }]), n }
    }

    /// Returns the hash tag that all items share.
    pub(crate) fn hash_tag(&self) -> HashTag {
        self.items.first().map(|item| item.target.hash_tag).unwrap_or_default()
    }

    /// Returns how long the group occupies the store, in units of [`MAX_WORK`].
    pub(crate) fn work(&self) -> u32 {
        self.items.iter().map(|item| item.target.gate.quota.kind().definition().work).sum()
    }
}

/// The maximum work of one call: about 0.6 ms of Redis's single thread, which is 128 levels, 85 counters or
/// 51 logs.
pub(crate) const MAX_WORK: u32 = 256;

/// The outcome of a group.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The number of checks admitted and charged.
    pub(crate) k: u64,
    /// One entry per item.
    pub(crate) before: SmallVec<[Before; 1]>,
    /// The server's clock, in µs since 1970.
    pub(crate) now_us: u64,
}

impl Outcome {
    /// Returns whether tidegate's scripts can have sent this reply.
    pub(super) fn is_possible(&self, group: &Group) -> bool {
        let mut found = group.items.iter().zip(&self.before);
        let (k, n, now) = (self.k, group.n, self.now_us);
        let is_affordable = |item: &Item, before: &Before| {
            let quota = &item.target.gate.quota;
            quota.kind().algorithm().is_possible(before.raw, now)
                && k <= before.afford(quota, n, item.cost, item.max_delay_us, now)
        };
        now <= EXACT && found.all(|(item, before)| is_affordable(item, before))
    }
}

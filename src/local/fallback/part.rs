//! One item of a group, within this process's share of its quota.

use crate::quota::reference::{Answer, Taken};
use crate::quota::{Quota, units_of_share};
use crate::store::{Item, Outcome, Target};

/// The shortest wait for a cost above the share. Only Redis can admit it, and the breaker probes
/// Redis at least this often.
const PROBED_WITHIN_US: u64 = 1_000_000;

pub(super) struct Part<'a> {
    pub(super) target: &'a Target,
    pub(super) share: Quota,
    /// The item's cost; if that is above the share, this process's part of it, which fits.
    pub(super) cost: u64,
    pub(super) max_delay_us: Option<u64>,
    pub(super) is_above_share: bool,
}

impl<'a> Part<'a> {
    pub(super) fn new(item: &'a Item, instances: u64) -> Self {
        let quota = &item.target.gate.quota;
        let share = quota.share(instances);
        let is_above_share = item.cost > share.limit();
        let cost = if is_above_share { units_of_share(item.cost, quota.limit(), &share) } else { item.cost };
        Self { target: &item.target, share, cost, max_delay_us: item.max_delay_us, is_above_share }
    }

    /// Returns the answer to the item at index `at` of a group that was taken `n` times.
    ///
    /// A cost above the share is denied. Its wait is that for this process's part of the cost: when the
    /// whole quota has room for the cost, if every process has used an equal part of it.
    pub(super) fn answer(&self, n: u64, at: usize, outcome: &Outcome) -> Answer {
        let (before, k, now) = (outcome.before[at], outcome.k, outcome.now_us);
        let (quota, cost, max_delay) = (&self.share, self.cost, self.max_delay_us);
        let taken = Taken { quota, cost, max_delay, n, k, before, now };
        let (granted, answer) = taken.grant(0, n.max(1));
        if self.is_above_share {
            let retry_after_us = answer.retry_after_us.max(PROBED_WITHIN_US);
            return Answer { allowed: false, retry_after_us, ..answer };
        }
        // Alone, the take decides. In a group, another item may have denied.
        let is_alone = outcome.before.len() == 1;
        Answer { allowed: if n > 0 && is_alone { granted > 0 } else { taken.affords(0) }, ..answer }
    }

    /// Returns the stamp by which units of the item at index `at` are given back.
    pub(super) fn stamp_us(&self, at: usize, outcome: &Outcome) -> u64 {
        self.share.kind().algorithm().stamp(outcome.before[at].raw, outcome.now_us)
    }
}

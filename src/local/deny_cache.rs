//! Cached denials: a key that was just denied is denied again in this process, without a call to Redis, until
//! it could be admitted.
//!
//! The cache never admits, so it cannot over-admit. A cached answer is the answer that Redis would give if
//! other processes had left the key alone since the denial, except for the units left of a sliding log that
//! denied a cost above 1: at least as many are left. Charges, resets, refunds and unblocks by other processes
//! are observed late, by the cap at most.

mod denials;

use std::time::Duration;

use self::denials::Denials;
pub(crate) use self::denials::{SLOTS, SlotSnapshot, slot};
use crate::batch::Share;
use crate::quota::Quota;
use crate::quota::reference::{Answer, Before, Taken};
use crate::runtime::clock::Clock;
use crate::store::{GroupItem, Target, Written};

const MAX_KEYS: usize = 65_536;

pub(crate) struct DenyCache {
    clock: Clock,
    cap_us: u64,
    denials: Denials<CachedDenial>,
}

#[derive(Clone)]
struct CachedDenial {
    quota: Quota,
    cost: u64,
    max_delay_us: Option<u64>,
    /// The state that denied, at the server's time.
    state: Before,
    server_now_us: u64,
    received_us: u64,
    until_us: u64,
    /// Of a replicated gate: before this time of the server, debt denies.
    not_before_us: u64,
}

impl DenyCache {
    pub(crate) fn new(clock: Clock, cap: Duration) -> Self {
        let cap_us = u64::try_from(cap.as_micros()).unwrap_or(u64::MAX);
        Self { clock, cap_us, denials: Denials::new(MAX_KEYS) }
    }

    /// Called before a check is sent.
    pub(crate) fn snapshot(&self, item: &GroupItem) -> SlotSnapshot {
        self.denials.snapshot(&item.target, can_others_pass(item))
    }

    /// Returns the answer to a check that is still denied, and the server's time by now.
    pub(crate) fn find(&self, item: &GroupItem) -> Option<(Answer, u64)> {
        let until_us = self.denials.until_us(&item.target);
        // Reads no clock in the common case.
        if until_us == 0 {
            return None;
        }
        let now_us = self.clock.local_us();
        if until_us <= now_us {
            return None;
        }
        let denial = self.denials.find(&item.target)?;
        if now_us >= denial.until_us || !denial.denies(item) {
            return None;
        }
        // Counted from when the denial was received, so that a client that waits is not too early.
        let now_us = denial.server_now_us + now_us.saturating_sub(denial.received_us);
        // Denials that lead to a ban are counted in the store. Those by a block are not.
        if item.ban().is_some() && denial.state.blocked_until_us <= now_us {
            return None;
        }
        Some((denial.answer(item, now_us), now_us))
    }

    /// Caches a denial: from when its check was sent until it could pass, at most for the cap.
    pub(crate) fn remember(&self, snapshot: SlotSnapshot, item: GroupItem, share: &Share) {
        let quota = item.target.gate.quota;
        if share.outcome.before.is_empty() || quota.kind().counts_denied() {
            return;
        }
        let (k, now) = (share.outcome.k, share.outcome.now_us);
        // The cache does not know the second state that decides while a peer is cut off.
        let Some(not_before_us) = share.outcome.not_before_us(0) else { return };
        let before = share.outcome.before_with_ban(0);
        if item.ban().is_some() && before.blocked_until_us <= now {
            return;
        }
        let raw = quota.kind().algorithm().after(before.raw, k * item.cost, now);
        let mut denial = CachedDenial {
            quota,
            cost: item.cost,
            max_delay_us: item.max_delay_us,
            state: Before { raw, ..before },
            server_now_us: now,
            received_us: self.clock.local_us(),
            until_us: 0,
            not_before_us,
        };
        denial.until_us = share.sent_us + denial.answer(&item, now).retry_after_us.min(self.cap_us);
        let until_us = denial.until_us;
        self.denials.remember(snapshot, &item.target, denial, now, until_us);
    }

    /// Called after this process has given units back, or written the key otherwise.
    pub(crate) fn forget(&self, target: &Target) {
        self.denials.forget(target);
    }

    /// Called after the store admitted a check of this process. Returns whether
    /// [`record_admission`](Self::record_admission) has to remove an earlier denial of its key.
    #[inline]
    pub(crate) fn raise_latest_admission(&self, snapshot: SlotSnapshot, share: &Share) -> bool {
        self.denials.raise_latest_admission(snapshot, share.outcome.now_us, share.sent_us)
    }

    /// Called after the store admitted a check of this process at the server's time `now_us`: an earlier
    /// denial, of a larger cost or under another quota, would report a wait that is too short.
    pub(crate) fn record_admission(&self, target: &Target, now_us: u64) {
        self.denials.record_admission(target, now_us);
    }

    /// Called after this process charged `units` without a check. A charge cannot end a denial. So that a key that is
    /// charged for each denial is not checked each time, the cached denial of a fixed window stays, with these units.
    pub(crate) fn record_charge(&self, target: &Target, units: u64, written: &Written) {
        self.denials.record_charge(target, written.now_us, |denial| denial.add(units, written.stamp_us));
    }
}

/// Returns whether another check of the key under the same quota can be admitted while this one is denied: a cheaper
/// or a more patient one.
fn can_others_pass(item: &GroupItem) -> bool {
    item.cost > 1 || item.max_delay_us.is_some()
}

impl CachedDenial {
    /// Returns whether this denial also denies `item`: it wants no fewer units and accepts no longer delay.
    fn denies(&self, item: &GroupItem) -> bool {
        let accepts = |delay: Option<u64>| delay.unwrap_or(u64::MAX);
        let wants_no_less = match self.quota.kind().predicts() {
            true => item.cost >= self.cost,
            // A log reports the wait for one cost alone.
            false => item.cost == self.cost,
        };
        wants_no_less
            && accepts(item.max_delay_us) <= accepts(self.max_delay_us)
            && item.target.gate.quota == self.quota
    }

    /// Adds units that were charged after the denial, with this stamp. Returns whether the state is known then: in
    /// the window that denied, neither the time nor the order of charges matters.
    fn add(&mut self, units: u64, stamp_us: u64) -> bool {
        let algorithm = self.quota.kind().algorithm();
        let is_same_window =
            algorithm.is_stamp_the_end() && algorithm.stamp(self.state.raw, self.server_now_us) == stamp_us;
        if is_same_window {
            self.state.raw = algorithm.after(self.state.raw, units, self.server_now_us);
        }
        is_same_window
    }

    /// Returns the answer to `item` at the server's time `now`.
    fn answer(&self, item: &GroupItem, now: u64) -> Answer {
        let raw = self.quota.kind().algorithm().later(self.state.raw, self.server_now_us, now);
        let taken = Taken {
            quota: &self.quota,
            cost: item.cost,
            max_delay: item.max_delay_us,
            n: 1,
            k: 0,
            before: Before { raw, ..self.state },
            now,
        };
        let answer = taken.answer(0);
        let retry_after_us = answer.retry_after_us.max(self.not_before_us.saturating_sub(now));
        Answer { retry_after_us, ..answer }
    }
}

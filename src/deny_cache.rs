//! Cached denials: a key that was just denied is denied again in this process, without a call to Redis, until
//! it could be admitted.
//!
//! The cache never admits, so it cannot over-admit. A cached answer is the answer that Redis would give if
//! other processes had left the key alone since the denial, except for the units left of a sliding log, which
//! are those at the denial. Charges, resets, refunds and unblocks by other processes are observed late, by
//! the cap at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::algorithm::{Answer, Before, State, Taken};
use crate::batch::Share;
use crate::clock::Clock;
use crate::quota::{Kind, Quota};
use crate::store::{ByTarget, Item, Target};

const MOST_KEYS: usize = 65_536;

/// The number of slots in the arrays below. A target's slot follows from its fingerprint. Targets that share
/// a slot evict each other's denials, but never cause a wrong one.
const SLOTS: usize = 4_096;

pub(crate) struct DenyCache {
    clock: Clock,
    cap_us: u64,
    denials: ByTarget<Denial>,
    /// By slot, until when any denial is cached. Read before `denials`, so that checks of keys that were
    /// never denied take no lock.
    until_us: Box<[AtomicU64]>,
    /// By slot, how often keys were forgotten. A denial is not cached if its check began before a key
    /// was forgotten.
    forgotten: Box<[AtomicU64]>,
    /// By slot, the server's time of the latest take that was charged. A denial by an earlier take is
    /// not cached. 0 until a check is sent for which that matters (`can_others_pass`): until then,
    /// admitted checks write nothing here.
    charged_us: Box<[AtomicU64]>,
}

#[derive(Clone)]
struct Denial {
    quota: Quota,
    cost: u64,
    max_delay_us: Option<u64>,
    /// The state that denied, at the server's time.
    state: Before,
    server_now_us: u64,
    received_us: u64,
    until_us: u64,
}

/// A check that is sent: its slot, and the slot's counters by then.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    slot: usize,
    forgotten: u64,
    charged_us: u64,
}

impl DenyCache {
    pub(crate) fn new(clock: Clock, cap: Duration) -> Self {
        let cap_us = u64::try_from(cap.as_micros()).unwrap_or(u64::MAX);
        let slots = || (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let denials = ByTarget::new(MOST_KEYS);
        Self { clock, cap_us, denials, until_us: slots(), forgotten: slots(), charged_us: slots() }
    }

    /// Called before a check is sent.
    pub(crate) fn asked(&self, item: &Item) -> Asked {
        let slot = slot(&item.target);
        let mut charged_us = self.charged_us[slot].load(Ordering::Acquire);
        if charged_us == 0 && can_others_pass(item) {
            // From here on charges are recorded, which may be younger than this check's denial.
            charged_us = self.charged_us[slot].fetch_max(1, Ordering::SeqCst).max(1);
        }
        Asked { slot, forgotten: self.forgotten[slot].load(Ordering::Acquire), charged_us }
    }

    /// Returns the answer to a check that is still denied, and the server's time by now.
    pub(crate) fn find(&self, item: &Item) -> Option<(Answer, u64)> {
        let until_us = self.until_us[slot(&item.target)].load(Ordering::Relaxed);
        // The usual case: nothing was ever denied in this slot. Reads no clock.
        if until_us == 0 {
            return None;
        }
        let now_us = self.clock.local_us();
        if until_us <= now_us {
            return None;
        }
        let denial = self.denials.get(&item.target)?;
        if now_us >= denial.until_us || !denial.denies(item) {
            return None;
        }
        // Counted from when the denial was received, so that a client that waits is not too early.
        let now_us = denial.server_now_us + now_us.saturating_sub(denial.received_us);
        Some((denial.answer(item, now_us), now_us))
    }

    /// Caches a denial: from when its check was sent until it could pass, at most for the cap.
    pub(crate) fn remember(&self, asked: Asked, item: Item, share: &Share) {
        let quota = item.target.gate.quota;
        let counts_denied = matches!(quota.kind(), Kind::SlidingLog(log) if log.count_denied);
        let Some(before) = share.outcome.before.first() else { return };
        if counts_denied {
            return;
        }
        let (k, now) = (share.outcome.k, share.outcome.now_us);
        let seen = quota.kind().algorithm().after(before.seen, k * item.cost, now);
        let mut denial = Denial {
            quota,
            cost: item.cost,
            max_delay_us: item.max_delay_us,
            state: Before { seen, ..*before },
            server_now_us: now,
            received_us: self.clock.local_us(),
            until_us: 0,
        };
        denial.until_us = share.sent_us + denial.answer(&item, now).retry_after_us.min(self.cap_us);
        self.until_us[asked.slot].fetch_max(denial.until_us, Ordering::SeqCst);
        self.denials.insert(&item.target, denial);
        // Race: `forget` and `charged` write these counters and then remove the denial; this inserts the
        // denial and then reads the counters. So one of the two removes a denial that is out of date.
        let charged_us = self.charged_us[asked.slot].load(Ordering::SeqCst);
        // Takes of one call have one time, so at the same time the charge may be the later one.
        let is_charged = charged_us != asked.charged_us && charged_us >= now;
        if is_charged || self.forgotten[asked.slot].load(Ordering::SeqCst) != asked.forgotten {
            self.denials.remove(&item.target);
        }
    }

    /// Called after this process has given units back, or written the key otherwise.
    pub(crate) fn forget(&self, target: &Target) {
        self.forgotten[slot(target)].fetch_add(1, Ordering::SeqCst);
        self.denials.remove(target);
    }

    /// Returns whether [`charged`](Self::charged) has anything to do for an admitted check.
    #[inline]
    pub(crate) fn records_charges(&self, asked: Asked) -> bool {
        self.charged_us[asked.slot].load(Ordering::Relaxed) > 0
    }

    /// Called after this process was charged units of a key at the server's time `now_us`: an earlier denial
    /// of a larger cost would report a wait that is too short.
    pub(crate) fn charged(&self, target: &Target, now_us: u64) {
        let slot = slot(target);
        if self.charged_us[slot].load(Ordering::Relaxed) == 0 {
            return;
        }
        self.charged_us[slot].fetch_max(now_us, Ordering::SeqCst);
        if self.until_us[slot].load(Ordering::SeqCst) > 0 {
            self.denials.remove_if(target, |denial| denial.server_now_us <= now_us);
        }
    }
}

fn slot(target: &Target) -> usize {
    target.fingerprint.0 as usize % SLOTS
}

/// Returns whether another check of the key can be admitted while this one is denied: a cheaper or a more
/// patient one. A denial of one unit that accepts any delay ends before any other check is admitted.
fn can_others_pass(item: &Item) -> bool {
    item.cost > 1 || item.max_delay_us.is_some()
}

impl Denial {
    /// Returns whether this denial also denies `item`: it wants no fewer units and accepts no longer delay.
    fn denies(&self, item: &Item) -> bool {
        let accepts = |delay: Option<u64>| delay.unwrap_or(u64::MAX);
        let wants_no_less = match self.quota.kind() {
            // A log reports the wait for one cost alone.
            Kind::SlidingLog(_) => item.cost == self.cost,
            _ => item.cost >= self.cost,
        };
        wants_no_less
            && accepts(item.max_delay_us) <= accepts(self.max_delay_us)
            && item.target.gate.quota == self.quota
    }

    /// Returns the answer to `item` at the server's time `now`.
    fn answer(&self, item: &Item, now: u64) -> Answer {
        let algorithm = self.quota.kind().algorithm();
        let seen = match self.quota.kind() {
            // Which units leave a log when is not known here.
            Kind::SlidingLog(_) => self.state.seen,
            _ => {
                let mut state = State::default();
                algorithm.charge(&mut state, self.state.seen, 0, self.server_now_us);
                algorithm.settle(&state, now)
            }
        };
        let taken = Taken {
            quota: &self.quota,
            cost: item.cost,
            max_delay: item.max_delay_us,
            n: 1,
            k: 0,
            before: Before { seen, ..self.state },
            now,
        };
        taken.answer(0)
    }
}

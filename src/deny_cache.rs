//! Denials that are still true: a key that has just been refused is refused here
//! until it could pass, without asking Redis.
//!
//! Never admits, so it can never admit too many. What others do to the key in
//! the meantime (a reset, a refund, an unblock) is seen up to the cap late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::algorithm::{Answer, Before, Taken};
use crate::batch::Share;
use crate::clock::Clock;
use crate::quota::{Kind, Quota};
use crate::store::{ByTarget, Item, Target};

const MOST_KEYS: usize = 65_536;

const PLACES: usize = 4_096;

pub(crate) struct DenyCache {
    clock: Clock,
    cap_us: u64,
    denials: ByTarget<Denial>,
    /// By some bits of the fingerprint, until when anything is remembered. Read
    /// before the cache, whose locks all that is not denied would share.
    until_us: Box<[AtomicU64]>,
    /// By the same bits, how often keys were forgotten: what was asked before
    /// that is not remembered after it.
    forgotten: Box<[AtomicU64]>,
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

/// When an ask began, as far as forgetting goes.
#[derive(Clone, Copy)]
pub(crate) struct Asked(u64);

impl DenyCache {
    pub(crate) fn new(clock: Clock, cap: Duration) -> Self {
        let cap_us = u64::try_from(cap.as_micros()).unwrap_or(u64::MAX);
        let places = || (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { clock, cap_us, denials: ByTarget::new(MOST_KEYS), until_us: places(), forgotten: places() }
    }

    pub(crate) fn asked(&self, target: &Target) -> Asked {
        Asked(self.forgotten[place(target)].load(Ordering::Acquire))
    }

    /// The answer to an ask that is still to be denied, and the server's time
    /// that it stands on.
    pub(crate) fn find(&self, item: &Item) -> Option<(Answer, u64)> {
        let until_us = self.until_us[place(&item.target)].load(Ordering::Relaxed);
        // Mostly nothing was ever denied there, and no clock has to be read.
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
        let answer = denial.answer(item);
        // Counted from when it was received: who waits for it does not come too early.
        let age_us = now_us.saturating_sub(denial.received_us);
        let answer = Answer {
            retry_after_us: answer.retry_after_us.saturating_sub(age_us),
            reset_after_us: answer.reset_after_us.saturating_sub(age_us),
            ..answer
        };
        Some((answer, denial.server_now_us + age_us))
    }

    /// Remembers what was denied: from when it was sent until it could pass, at
    /// most for the cap.
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
        denial.until_us = share.sent_us + denial.answer(&item).retry_after_us.min(self.cap_us);
        let place = place(&item.target);
        self.until_us[place].fetch_max(denial.until_us, Ordering::Relaxed);
        self.denials.insert(&item.target, denial);
        // Looked at when it is in: whoever forgets counts first and then removes.
        if self.forgotten[place].load(Ordering::Acquire) != asked.0 {
            self.denials.remove(&item.target);
        }
    }

    /// After this process has given something back.
    pub(crate) fn forget(&self, target: &Target) {
        self.forgotten[place(target)].fetch_add(1, Ordering::AcqRel);
        self.denials.remove(target);
    }
}

fn place(target: &Target) -> usize {
    target.fingerprint.0 as usize % PLACES
}

impl Denial {
    /// Whether who asks for this wants no less and no later.
    fn denies(&self, item: &Item) -> bool {
        let accepts = |delay: Option<u64>| delay.unwrap_or(u64::MAX);
        let wants_no_less = match self.quota.kind() {
            // What a log tells holds for one cost alone.
            Kind::SlidingLog(_) => item.cost == self.cost,
            _ => item.cost >= self.cost,
        };
        wants_no_less
            && accepts(item.max_delay_us) <= accepts(self.max_delay_us)
            && item.target.gate.quota == self.quota
    }

    fn answer(&self, item: &Item) -> Answer {
        let taken = Taken {
            quota: &self.quota,
            cost: item.cost,
            max_delay: item.max_delay_us,
            n: 1,
            k: 0,
            before: self.state,
            now: self.server_now_us,
        };
        taken.answer(0)
    }
}

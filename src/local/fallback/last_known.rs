//! The last known state of keys: the state that the store reported last, so that the fallback does not start
//! from unused keys.

use crate::decision::Decision;
use crate::quota::reference::{Before, Record};
use crate::quota::{Quota, units_of_share};
use crate::runtime::clock::Clock;
use crate::store::{Target, TargetCache};

/// Keys with less than an eighth of the limit used are not noted. Noting them would cost every check a write,
/// to start close to an unused key.
const WORTH_NOTING: u64 = 8;

#[inline]
pub(super) fn is_worth_noting(decision: &Decision) -> bool {
    decision.remaining <= decision.limit - decision.limit.div_ceil(WORTH_NOTING)
}

pub(super) struct LastKnown(TargetCache<KnownState>);

#[derive(Clone, Copy)]
struct KnownState {
    /// Units used of `limit`, which may have changed since.
    used: u64,
    limit: u64,
    blocked_us: u64,
    /// This process's clock when the store's reply was handled.
    at_us: u64,
}

impl LastKnown {
    pub(super) fn new(max_keys: usize) -> Self {
        Self(TargetCache::new(max_keys))
    }

    pub(super) fn note(&self, target: &Target, decision: &Decision, before: &Before, clock: &Clock) {
        let limit = decision.limit;
        let used = limit.saturating_sub(decision.remaining);
        let blocked_us = before.blocked_until_us.saturating_sub(decision.now_us);
        self.0.insert(target, KnownState { used, limit, blocked_us, at_us: clock.now_us() });
    }

    /// Notes the fallback's own state after it was reconciled: the store's usage is at least that.
    pub(super) fn note_record(&self, target: &Target, share: &Quota, record: &Record, clock: &Clock) {
        let (limit, at_us) = (share.limit(), clock.now_us());
        if !record.has_expired(at_us) {
            let algorithm = share.kind().algorithm();
            let left = algorithm.remaining(algorithm.settle(&record.state, at_us), at_us);
            let blocked_us = record.blocked_until_us.saturating_sub(at_us);
            self.0.insert(target, KnownState { used: limit.saturating_sub(left), limit, blocked_us, at_us });
        }
    }

    /// Returns the state that the fallback starts from: as large a part of the share is used as was of
    /// the limit. All of it is dated to the reply, so it is free again late, never early.
    pub(super) fn record(&self, target: &Target, share: &Quota) -> Record {
        let mut record = Record::default();
        let Some(KnownState { used, limit, blocked_us, at_us }) = self.0.get(target) else { return record };
        record.penalize(share, units_of_share(used, limit, share), at_us);
        if blocked_us > 0 {
            record.block(share, at_us.saturating_add(blocked_us), at_us);
        }
        record
    }
}

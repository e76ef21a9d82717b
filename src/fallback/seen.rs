//! What the store last said of a key, so that who decides here does not begin
//! with an untouched one.

use crate::algorithm::{Before, Record};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::quota::{Quota, units_of_share};
use crate::store::{ByTarget, Target};

/// Keys of which less than this part of the limit is used are not noted: that
/// would cost every ask a write, to begin nearly where an untouched key does.
const WORTH_NOTING: u64 = 8;

#[inline]
pub(super) fn is_worth_noting(decision: &Decision) -> bool {
    decision.remaining <= decision.limit - decision.limit.div_ceil(WORTH_NOTING)
}

pub(super) struct LastSeen(ByTarget<Seen>);

#[derive(Clone, Copy)]
struct Seen {
    /// Of the limit that it was.
    used: u64,
    limit: u64,
    blocked_us: u64,
    /// This machine's clock when it was told.
    at_us: u64,
}

impl LastSeen {
    pub(super) fn new(max_keys: usize) -> Self {
        Self(ByTarget::new(max_keys))
    }

    pub(super) fn note(&self, target: &Target, decision: &Decision, before: &Before, clock: &Clock) {
        let limit = decision.limit;
        let used = limit.saturating_sub(decision.remaining);
        let blocked_us = before.blocked_until_us.saturating_sub(decision.now_us);
        self.0.insert(target, Seen { used, limit, blocked_us, at_us: clock.now_us() });
    }

    /// What was charged to the store: it knows of that at least.
    pub(super) fn note_record(&self, target: &Target, share: &Quota, record: &Record, clock: &Clock) {
        let (limit, at_us) = (share.limit(), clock.now_us());
        if !record.has_expired(at_us) {
            let algorithm = share.kind().algorithm();
            let left = algorithm.remaining(algorithm.settle(&record.state, at_us), at_us);
            let blocked_us = record.blocked_until_us.saturating_sub(at_us);
            self.0.insert(target, Seen { used: limit.saturating_sub(left), limit, blocked_us, at_us });
        }
    }

    /// The same part of the share is used as was of the limit, all of it at the
    /// moment at which it was told: late to be free again, never early.
    pub(super) fn record(&self, target: &Target, share: &Quota) -> Record {
        let mut record = Record::default();
        let Some(Seen { used, limit, blocked_us, at_us }) = self.0.get(target) else { return record };
        record.penalize(share, units_of_share(used, limit, share), at_us);
        if blocked_us > 0 {
            record.block(share, at_us.saturating_add(blocked_us), at_us);
        }
        record
    }
}

//! What the store last said of a key, so that who decides here does not begin
//! with an untouched one.

use std::hash::{Hash, Hasher};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, UnitWeighter};

use crate::algorithm::{Before, Record};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::fingerprint::{AsTheyAre, Fingerprint};
use crate::quota::Quota;
use crate::store::Target;

/// Keys of which less than this part of the limit is used are not noted: that
/// would cost every ask a write, to begin nearly where an untouched key does.
const WORTH_NOTING: u64 = 8;

#[inline]
pub(super) fn is_worth_noting(decision: &Decision) -> bool {
    decision.remaining <= decision.limit - decision.limit.div_ceil(WORTH_NOTING)
}

pub(super) struct LastSeen(Cache<Key, Seen, UnitWeighter, AsTheyAre>);

#[derive(Clone)]
struct Key {
    fingerprint: Fingerprint,
    redis_key: String,
}

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
        let most = max_keys as u64;
        let (hasher, lifecycle) = (AsTheyAre::default(), DefaultLifecycle::default());
        Self(Cache::with(max_keys.min(1_024), most, UnitWeighter, hasher, lifecycle))
    }

    pub(super) fn note(&self, target: &Target, decision: &Decision, before: &Before, clock: &Clock) {
        let limit = decision.limit;
        let used = limit.saturating_sub(decision.remaining);
        let blocked_us = before.blocked_until_us.saturating_sub(decision.now_us);
        self.insert(target, Seen { used, limit, blocked_us, at_us: clock.now_us() });
    }

    /// What was charged to the store: it knows of that at least.
    pub(super) fn note_record(&self, target: &Target, share: &Quota, record: &Record, clock: &Clock) {
        let (limit, at_us) = (share.limit(), clock.now_us());
        if !record.has_expired(at_us) {
            let algorithm = share.kind().algorithm();
            let left = algorithm.remaining(algorithm.settle(&record.state, at_us), at_us);
            let blocked_us = record.blocked_until_us.saturating_sub(at_us);
            self.insert(target, Seen { used: limit.saturating_sub(left), limit, blocked_us, at_us });
        }
    }

    fn insert(&self, target: &Target, seen: Seen) {
        let key = Key { fingerprint: target.fingerprint, redis_key: target.redis_key.clone() };
        self.0.insert(key, seen);
    }

    /// The same part of the share is used as was of the limit, all of it at the
    /// moment at which it was told: late to be free again, never early.
    pub(super) fn record(&self, target: &Target, share: &Quota) -> Record {
        let mut record = Record::default();
        let Some(Seen { used, limit, blocked_us, at_us }) = self.0.get(target) else { return record };
        let units = (u128::from(used) * u128::from(share.limit())).div_ceil(u128::from(limit.max(1)));
        record.penalize(share, units as u64, at_us);
        if blocked_us > 0 {
            record.block(share, at_us.saturating_add(blocked_us), at_us);
        }
        record
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.redis_key == other.redis_key
    }
}

impl Eq for Key {}

impl Equivalent<Key> for Target {
    fn equivalent(&self, key: &Key) -> bool {
        self.redis_key == key.redis_key
    }
}

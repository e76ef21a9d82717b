//! The last known state of keys: the state that the store reported last, so that the fallback does not start
//! from unused keys.

use crate::decision::Decision;
use crate::local::deny_cache::{SLOTS, slot};
use crate::quota::reference::{Before, Record};
use crate::quota::{Quota, units_of_share};
use crate::runtime::clock::Clock;
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::store::{Target, TargetCache, Write};

/// Keys with less than an eighth of the limit used are not noted. Noting them would cost every check a write,
/// to start close to an unused key.
const WORTH_NOTING: u64 = 8;

#[inline]
pub(super) fn is_worth_noting(decision: &Decision) -> bool {
    decision.remaining <= decision.limit - decision.limit.div_ceil(WORTH_NOTING)
}

pub(super) struct LastKnown {
    states: TargetCache<KnownState>,
    /// By slot, until when any noted state counts. Read before `states`, so that keys that were never noted take no
    /// lock.
    until_us: Box<[AtomicU64]>,
}

#[derive(Clone, Copy)]
struct KnownState {
    /// Units used of `limit`, which may have changed since.
    used: u64,
    limit: u64,
    blocked_us: u64,
    /// This process's clock when the store's reply was handled.
    at_us: u64,
    /// The store's clock then; 0 if this process computed the state.
    server_now_us: u64,
    /// This process's clock when the key is unused and not blocked again, if nobody charges it.
    until_us: u64,
}

impl LastKnown {
    pub(super) fn new(max_keys: usize) -> Self {
        Self { states: TargetCache::new(max_keys), until_us: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns whether any state may be noted in this slot.
    #[inline]
    pub(super) fn may_know(&self, slot: usize, clock: &Clock) -> bool {
        let until_us = self.until_us[slot].load(Ordering::Relaxed);
        // Reads no clock in the common case.
        until_us > 0 && until_us > clock.now_us()
    }

    /// Notes a state that is worth it. Another one replaces what was noted before, so that this is removed.
    pub(super) fn note(&self, target: &Target, decision: &Decision, before: &Before, clock: &Clock) {
        if is_worth_noting(decision) {
            let (limit, at_us) = (decision.limit, clock.now_us());
            let used = limit.saturating_sub(decision.remaining);
            let blocked_us = before.blocked_until_us.saturating_sub(decision.now_us);
            let until_us = at_us.saturating_add(decision.reset_after_us);
            let server_now_us = decision.now_us;
            self.insert(target, KnownState { used, limit, blocked_us, at_us, server_now_us, until_us });
        } else if self.may_know(slot(target), clock) {
            // Replies of several calls can be handled in another order.
            self.states.remove_if(target, |known| known.server_now_us <= decision.now_us);
        }
    }

    /// Removes the noted state of a key that was reset or unblocked. While a key is blocked, its usage is not known.
    pub(super) fn note_write(&self, target: &Target, write: Write) {
        if matches!(write, Write::Reset | Write::Block { for_us: 0 }) {
            self.states.remove(target);
        }
    }

    /// Notes the fallback's own state after it was reconciled: the store's usage is at least that.
    pub(super) fn note_record(&self, target: &Target, share: &Quota, record: &Record, clock: &Clock) {
        let (limit, at_us) = (share.limit(), clock.now_us());
        if !record.has_expired(at_us) {
            let algorithm = share.kind().algorithm();
            let left = algorithm.remaining(algorithm.settle(&record.state, at_us), at_us);
            let blocked_us = record.blocked_until_us.saturating_sub(at_us);
            let (used, until_us) = (limit.saturating_sub(left), record.expires_ms.saturating_mul(1_000));
            self.insert(target, KnownState { used, limit, blocked_us, at_us, server_now_us: 0, until_us });
        }
    }

    fn insert(&self, target: &Target, state: KnownState) {
        self.until_us[slot(target)].fetch_max(state.until_us, Ordering::Relaxed);
        self.states.insert(target, state);
    }

    /// Returns the state that the fallback starts from: as large a part of the share is used as was of
    /// the limit. All of it is dated to the reply, so it is free again late, never early. Without effect once the
    /// store's key is unused again, if nobody else has charged it.
    pub(super) fn record(&self, target: &Target, share: &Quota, now_us: u64) -> Record {
        let mut record = Record::default();
        let known = self.states.get(target).filter(|known| known.until_us > now_us);
        let Some(KnownState { used, limit, blocked_us, at_us, .. }) = known else { return record };
        record.penalize(share, units_of_share(used, limit, share), at_us);
        if blocked_us > 0 {
            record.block(share, at_us.saturating_add(blocked_us), at_us);
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::decision::Source;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::runtime::clock::ManualClock;
    use crate::store::GateInfo;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn state_counts_until_the_key_is_unused_in_the_store() {
        let quota = Quota::fixed_window(10, HOUR);
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
        let (manual, known) = (ManualClock::new(), LastKnown::new(16));
        let (clock, target) = (Clock::Manual(manual.clone()), Target::new(&gate, b"key", None));
        let now_us = clock.now_us();
        // The window ends in a minute.
        let decision = Decision {
            gate: gate.name,
            allowed: false,
            limit: 10,
            remaining: 0,
            retry_after_us: 60_000_000,
            reset_after_us: 60_000_000,
            delay_us: 0,
            source: Source::Redis,
            shadow: false,
            now_us,
            stamp_us: now_us,
            is_within_limit: false,
        };
        known.note(&target, &decision, &Before::default(), &clock);
        let is_unused = || known.record(&target, &quota, clock.now_us()) == Record::default();
        for (after, expected) in [(59, false), (1, true), (600, true)] {
            manual.advance(Duration::from_secs(after));
            assert_eq!(is_unused(), expected);
        }
    }
}

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

    /// Notes a state that is worth it. Another one replaces what was noted before, so that this is removed. Replies of several
    /// calls can be handled in another order: a state that is newer by the store's clock stays.
    pub(super) fn note(&self, target: &Target, decision: &Decision, before: &Before, clock: &Clock) {
        if is_worth_noting(decision) {
            let (limit, at_us, server_now_us) = (decision.limit, clock.now_us(), decision.now_us);
            let used = limit.saturating_sub(decision.remaining);
            let blocked_us = before.blocked_until_us.saturating_sub(decision.now_us);
            let until_us = at_us.saturating_add(decision.reset_after_us);
            let state = KnownState { used, limit, blocked_us, at_us, server_now_us, until_us };
            self.until_us[slot(target)].fetch_max(until_us, Ordering::Relaxed);
            self.states.insert_unless(target, state, |known| known.server_now_us > server_now_us);
        } else if self.may_know(slot(target), clock) {
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
            self.until_us[slot(target)].fetch_max(until_us, Ordering::Relaxed);
            self.states
                .insert(target, KnownState { used, limit, blocked_us, at_us, server_now_us: 0, until_us });
        }
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

    const QUOTA: Quota = Quota::fixed_window(10, Duration::from_secs(3_600));

    fn world() -> (LastKnown, ManualClock, Target) {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", QUOTA).unwrap());
        (LastKnown::new(16), ManualClock::new(), Target::new(&gate, b"key", None))
    }

    /// The window ends in a minute.
    fn decision(target: &Target, remaining: u64, now_us: u64) -> Decision {
        Decision {
            gate: target.gate.name,
            allowed: remaining > 0,
            limit: 10,
            remaining,
            retry_after_us: 60_000_000,
            reset_after_us: 60_000_000,
            delay_us: 0,
            source: Source::Redis,
            shadow: false,
            now_us,
            stamp_us: now_us,
            is_within_limit: false,
            is_blocked: false,
        }
    }

    #[test]
    fn state_counts_until_the_key_is_unused_in_the_store() {
        let (known, manual, target) = world();
        let clock = Clock::Manual(manual.clone());
        known.note(&target, &decision(&target, 0, clock.now_us()), &Before::default(), &clock);
        let is_unused = || known.record(&target, &QUOTA, clock.now_us()) == Record::default();
        for (after, expected) in [(59, false), (1, true), (600, true)] {
            manual.advance(Duration::from_secs(after));
            assert_eq!(is_unused(), expected);
        }
    }

    #[test]
    fn older_state_that_is_noted_late_replaces_no_newer_one() {
        let (known, manual, target) = world();
        let clock = Clock::Manual(manual);
        let now_us = clock.now_us();
        // Used after each call, in the order of the replies: the third of them is older than the second.
        for (remaining, at_us, used) in [(5, 1, 5), (0, 3, 10), (2, 2, 10), (9, 2, 10), (1, 4, 9), (9, 5, 0)]
        {
            known.note(&target, &decision(&target, remaining, now_us + at_us), &Before::default(), &clock);
            let mut expected = Record::default();
            expected.penalize(&QUOTA, used, now_us);
            assert_eq!(known.record(&target, &QUOTA, now_us), expected, "{used} used");
        }
    }
}

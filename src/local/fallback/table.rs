//! The keys that the fallback decides: the reference algorithms on a bounded map, like the in-memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::key::HashTag;
use crate::key::keyed_hash::IdentityHasher;
use crate::quota::reference::{self, Answer, Record, Taken};
use crate::quota::{Quota, units_of_share};
use crate::runtime::sync::{Mutex, lock};
use crate::store::generations::{EvictionRank, Generations};
use crate::store::{GroupItem, Outcome, Target, UsedCharge};

const SHARDS: usize = 16;

/// Sharded, so that threads seldom contend for a lock.
pub(super) struct LocalTable(Box<[Mutex<Keys>]>);

/// An evicted key loses its unreconciled units.
struct Keys(Generations<Target, Kept, IdentityHasher>);

struct Kept {
    share: Quota,
    record: Record,
    /// Units that the fallback admitted or that were used, and that are not reconciled yet.
    pending: u64,
    /// Units of `pending` that were given back since they were last sent to the store.
    given_back: u64,
    /// Made for the first reservation since the key was last reconciled.
    stamp: Option<ReconcileStamp>,
}

/// The store's stamp for units that the fallback admitted and then reconciled: they are refunded with it. 0
/// until then. Each reservation of these units holds a clone, which tells where to give units back.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReconcileStamp(Arc<AtomicU64>);

impl ReconcileStamp {
    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&stamp_us| stamp_us > 0)
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl LocalTable {
    pub(super) fn new(max_keys: usize) -> Self {
        let max_young = max_keys.div_ceil(2 * SHARDS);
        Self((0..SHARDS).map(|_| Mutex::new(Keys(Generations::new(max_young)))).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|keys| lock(keys).0.len()).sum()
    }

    /// Takes all parts or none. `warm` returns the initial state of a key that is not in the table.
    pub(super) fn take(
        &self,
        parts: &[LimitPart<'_>],
        n: u64,
        now_us: u64,
        warm: impl Fn(&Target, &Quota) -> Record,
    ) -> Outcome {
        // Locked in ascending order, so that two groups cannot deadlock.
        let mut shards: SmallVec<[usize; 1]> = parts.iter().map(|part| shard(part.target)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut guards: SmallVec<[_; 1]> = shards.iter().map(|&shard| lock(&self.0[shard])).collect();
        let guard_of = |target: &Target| shards.binary_search(&shard(target)).unwrap_or(0);

        let mut records: SmallVec<[Record; 1]> = parts
            .iter()
            .map(|LimitPart { target, share, .. }| {
                let lent = guards[guard_of(target)].lend(target, share, now_us);
                lent.unwrap_or_else(|| warm(target, share))
            })
            .collect();
        let mut items: SmallVec<[reference::Item<'_>; 1]> = parts
            .iter()
            .zip(&mut records)
            .map(|(part, record)| reference::Item::new(&part.share, record, part.cost, part.max_delay_us))
            .collect();
        let k = reference::take(&mut items, n, now_us);
        let before = items.iter().map(|item| item.before).collect();
        drop(items);
        for (LimitPart { target, share, cost, .. }, record) in parts.iter().zip(records) {
            guards[guard_of(target)].take_back(target, share, record, k * cost, now_us);
        }
        Outcome::new(k, before, now_us)
    }

    /// Charges units that were used, as far as at most `most` are used afterwards. `warm` is as in [`take`](Self::take).
    pub(super) fn charge_used(
        &self,
        target: &Target,
        share: &Quota,
        [units, most]: [u64; 2],
        now_us: u64,
        warm: impl Fn(&Target, &Quota) -> Record,
    ) -> UsedCharge {
        let mut keys = lock(&self.0[shard(target)]);
        let mut record = keys.lend(target, share, now_us).unwrap_or_else(|| warm(target, share));
        let (charged, before) = record.charge_used(share, units, most, now_us);
        keys.take_back(target, share, record, charged, now_us);
        UsedCharge { charged, before, now_us }
    }

    /// Returns the units that were admitted here and still count, for keys with the given hash tags. Removes
    /// all keys without such units.
    pub(super) fn unreconciled(
        &self,
        now_us: u64,
        is_wanted: impl Fn(HashTag) -> bool,
    ) -> Vec<(Target, u64)> {
        self.0.iter().flat_map(|keys| lock(keys).unreconciled(now_us, &is_wanted)).collect()
    }

    /// Called when the store accepted `units` with the stamp `store_stamp_us`, or will never accept them
    /// (`None`). Forgets the key and its state, unless more was admitted meanwhile; `note` records the
    /// state before another check can start from it.
    ///
    /// Returns the units that were given back while they were in flight: the store has accepted too many by
    /// these.
    pub(super) fn settle(
        &self,
        target: &Target,
        units: u64,
        store_stamp_us: Option<u64>,
        now_us: u64,
        note: impl Fn(&Quota, &Record),
    ) -> u64 {
        let mut keys = lock(&self.0[shard(target)]);
        let Some(kept) = keys.0.get_mut(target) else { return 0 };
        let unreconciled = kept.unreconciled(now_us);
        let excess = units.saturating_sub(unreconciled).min(kept.given_back);
        (kept.pending, kept.given_back) = (unreconciled.saturating_sub(units), 0);
        // Later reservations get a stamp of their own: their units have not been reconciled.
        if let (Some(stamp), Some(store_stamp_us)) = (kept.stamp.take(), store_stamp_us) {
            stamp.0.store(store_stamp_us, Ordering::Relaxed);
        }
        if kept.pending == 0 {
            note(&kept.share, &kept.record);
            keys.0.remove(target);
        }
        excess
    }

    /// Returns the stamp of the units that this key has admitted since it was last reconciled.
    pub(super) fn stamp(&self, target: &Target) -> Option<ReconcileStamp> {
        let mut keys = lock(&self.0[shard(target)]);
        Some(keys.0.get_mut(target)?.stamp.get_or_insert_default().clone())
    }

    /// Gives back units of a reservation with the stamp `admitted_us`. Returns the store's stamp for them, if
    /// they were reconciled: then they have to be given back there.
    pub(super) fn give_back(
        &self,
        target: &Target,
        stamp: &ReconcileStamp,
        units: u64,
        admitted_us: u64,
        now_us: u64,
    ) -> Option<u64> {
        let mut keys = lock(&self.0[shard(target)]);
        // Read under the lock, under which it is set.
        if let Some(store_stamp_us) = stamp.get() {
            return Some(store_stamp_us);
        }
        let kept = keys.0.get_mut(target)?;
        if kept.stamp.as_ref().is_some_and(|own| own.is(stamp)) {
            kept.record.refund(&kept.share, units, Some(admitted_us), now_us);
            let units = units.min(kept.pending);
            kept.pending -= units;
            kept.given_back += units;
        }
        None
    }
}

fn shard(target: &Target) -> usize {
    target.keyed_hash.0 as usize % SHARDS
}

impl Keys {
    fn unreconciled(&mut self, now_us: u64, is_wanted: impl Fn(HashTag) -> bool) -> Vec<(Target, u64)> {
        let mut unreconciled = Vec::new();
        self.0.retain(|target, kept| {
            let units = kept.unreconciled(now_us);
            kept.given_back = 0;
            if units > 0 && is_wanted(target.hash_tag) {
                unreconciled.push((target.clone(), units));
            }
            units > 0
        });
        unreconciled
    }

    /// Takes a known key's record out, to be changed and put back by [`take_back`](Self::take_back).
    fn lend(&mut self, target: &Target, share: &Quota, now_us: u64) -> Option<Record> {
        let record = self.0.update(target, rank(now_us), |kept| {
            kept.share = *share;
            std::mem::take(&mut kept.record)
        })?;
        if record.has_expired(now_us) {
            self.0.remove(target);
            return None;
        }
        Some(record)
    }

    fn take_back(&mut self, target: &Target, share: &Quota, record: Record, admitted: u64, now_us: u64) {
        match self.0.get_mut(target) {
            Some(kept) => {
                kept.record = record;
                kept.pending = kept.pending.saturating_add(admitted);
            }
            // A peek at an unused key stores nothing.
            None if record == Record::default() => {}
            None => {
                let kept = Kept { share: *share, record, pending: admitted, given_back: 0, stamp: None };
                self.0.insert(target.clone(), kept, rank(now_us));
            }
        }
    }
}

/// Ranks keys for eviction.
fn rank(now_us: u64) -> impl Fn(&Kept) -> Option<EvictionRank> {
    move |kept| EvictionRank::of(&kept.record, &kept.share, now_us)
}

impl Kept {
    /// Returns the units to send to the store: those of `pending` that are still used. The rest has drained,
    /// or its window has ended.
    fn unreconciled(&self, now_us: u64) -> u64 {
        if self.record.has_expired(now_us) {
            return 0;
        }
        let algorithm = self.share.kind().algorithm();
        let seen = algorithm.settle(&self.record.state, now_us);
        // Rounded up, and with the debt of units that were used.
        let used = algorithm.used(seen, now_us).ceil() as u64;
        used.min(self.pending)
    }
}

// One item of a group, within this process's share of its quota.

/// The shortest wait for a cost above the share. Only Redis can admit it, and the breaker probes
/// Redis at least this often.
const PROBED_WITHIN_US: u64 = 1_000_000;

pub(super) struct LimitPart<'a> {
    pub(super) target: &'a Target,
    pub(super) share: Quota,
    /// The item's cost; if that is above the share, this process's part of it, which fits.
    pub(super) cost: u64,
    pub(super) max_delay_us: Option<u64>,
    pub(super) is_above_share: bool,
}

impl<'a> LimitPart<'a> {
    pub(super) fn new(item: &'a GroupItem, instances: u64) -> Self {
        let quota = &item.target.gate.quota;
        let share = item.target.gate.share(instances);
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::store::{GateInfo, GroupItem};

    const NOW_US: u64 = 1_767_225_600_000_000;
    const DAY_US: u64 = 86_400_000_000;

    #[test]
    fn blocked_key_without_units_stays_in_the_table_after_many_fresh_keys() {
        let quota = Quota::fixed_window(1, std::time::Duration::from_secs(86_400));
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
        let table = LocalTable::new(1_000);
        // The last known state is found only once, so the table alone keeps the block.
        let is_known = Cell::new(true);
        let admitted = |key: &str| {
            let target = Target::new(&gate, key.as_bytes(), None);
            let item = GroupItem::new(target, 1);
            let warm = |_: &Target, quota: &Quota| {
                let mut record = Record::default();
                if key == "blocked" && is_known.take() {
                    record.block(quota, NOW_US + DAY_US, NOW_US);
                }
                record
            };
            table.take(&[LimitPart::new(&item, 1)], 1, NOW_US, warm).k
        };
        assert_eq!(admitted("blocked"), 0);
        for key in 0..10_000 {
            assert_eq!(admitted(&key.to_string()), 1);
        }
        assert!(table.len() <= 1_024);
        assert_eq!(admitted("blocked"), 0);
    }
}

//! The keys that the fallback decides: the reference algorithms on a bounded map, like the in-memory store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::part::Part;
use crate::algorithm::{self, Record};
use crate::key::HashTag;
use crate::keyed_hash::IdentityHasher;
use crate::quota::Quota;
use crate::store::{Outcome, Target};

const SHARDS: usize = 16;

/// Sharded, so that threads seldom contend for a lock.
pub(super) struct LocalTable(Box<[Mutex<Keys>]>);

/// Two generations. When the young one is full it becomes the old one. The old one is dropped with its
/// pending charges: at least `max_young` other keys were checked since.
struct Keys {
    young: HashMap<Target, Kept, IdentityHasher>,
    old: HashMap<Target, Kept, IdentityHasher>,
    max_young: usize,
}

struct Kept {
    share: Quota,
    record: Record,
    /// Units that the fallback admitted and the store was not charged for.
    charged: u64,
    /// Units of `charged` that were given back since the last charge was sent.
    given_back: u64,
    /// Made for the first reservation since the last charge.
    stamp: Option<ChargeStamp>,
}

/// When the store was charged for the units that the fallback admitted: the store's clock, 0 until then. Each
/// reservation of these units holds a clone, which tells where to give units back.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChargeStamp(Arc<AtomicU64>);

impl ChargeStamp {
    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&charged_us| charged_us > 0)
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl LocalTable {
    pub(super) fn new(max_keys: usize) -> Self {
        let max_young = max_keys.div_ceil(2 * SHARDS).max(1);
        let keys = || Mutex::new(Keys { young: HashMap::default(), old: HashMap::default(), max_young });
        Self((0..SHARDS).map(|_| keys()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|keys| locked(keys).len()).sum()
    }

    /// Takes all parts or none. `warm` returns the initial state of a key that is not in the table.
    pub(super) fn take(
        &self,
        parts: &[Part<'_>],
        n: u64,
        now_us: u64,
        warm: impl Fn(&Target, &Quota) -> Record,
    ) -> Outcome {
        // Locked in ascending order, so that two groups cannot deadlock.
        let mut shards: SmallVec<[usize; 1]> = parts.iter().map(|part| shard(part.target)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut guards: SmallVec<[_; 1]> = shards.iter().map(|&shard| locked(&self.0[shard])).collect();
        let guard_of = |target: &Target| shards.binary_search(&shard(target)).unwrap_or(0);

        let mut records: SmallVec<[Record; 1]> = parts
            .iter()
            .map(|Part { target, share, .. }| {
                let lent = guards[guard_of(target)].lend(target, share, now_us);
                lent.unwrap_or_else(|| warm(target, share))
            })
            .collect();
        let mut items: SmallVec<[algorithm::Item<'_>; 1]> = parts
            .iter()
            .zip(&mut records)
            .map(|(part, record)| algorithm::Item {
                quota: &part.share,
                record,
                cost: part.cost,
                max_delay: part.max_delay_us,
            })
            .collect();
        let (k, before) = algorithm::take(&mut items, n, now_us);
        drop(items);
        for (Part { target, share, cost, .. }, record) in parts.iter().zip(records) {
            guards[guard_of(target)].take_back(target, share, record, k * cost);
        }
        Outcome { k, before, now_us }
    }

    /// Returns the units that were admitted here and still count, for keys with the given hash tags. Removes
    /// all keys without pending charges.
    pub(super) fn uncharged(&self, now_us: u64, is_wanted: impl Fn(HashTag) -> bool) -> Vec<(Target, u64)> {
        self.0.iter().flat_map(|keys| locked(keys).uncharged(now_us, &is_wanted)).collect()
    }

    /// Called when the store was charged `units` with the stamp `charged_us`, or will never take the charge
    /// (`None`). Forgets the key and its state, unless more was admitted meanwhile; `note` records the
    /// state before another check can start from it.
    ///
    /// Returns the units that were given back while the charge was in flight: the store has been
    /// charged too much by these.
    pub(super) fn settle(
        &self,
        target: &Target,
        units: u64,
        charged_us: Option<u64>,
        now_us: u64,
        note: impl Fn(&Quota, &Record),
    ) -> u64 {
        let mut keys = locked(&self.0[shard(target)]);
        let Some(kept) = keys.get_mut(target) else { return 0 };
        let uncharged = kept.uncharged(now_us);
        let excess = units.saturating_sub(uncharged).min(kept.given_back);
        (kept.charged, kept.given_back) = (uncharged.saturating_sub(units), 0);
        // Later reservations get a stamp of their own: their units have not been charged.
        if let (Some(stamp), Some(charged_us)) = (kept.stamp.take(), charged_us) {
            stamp.0.store(charged_us, Ordering::Relaxed);
        }
        if kept.charged == 0 {
            note(&kept.share, &kept.record);
            keys.remove(target);
        }
        excess
    }

    /// Returns the stamp of the units that this key has admitted since its last charge.
    pub(super) fn stamp(&self, target: &Target) -> Option<ChargeStamp> {
        let mut keys = locked(&self.0[shard(target)]);
        Some(keys.get_mut(target)?.stamp.get_or_insert_default().clone())
    }

    /// Gives back units of a reservation with the stamp `admitted_us`. Returns the stamp of the
    /// store's charge for them, if it was charged: then they have to be given back there.
    pub(super) fn give_back(
        &self,
        target: &Target,
        stamp: &ChargeStamp,
        units: u64,
        admitted_us: u64,
        now_us: u64,
    ) -> Option<u64> {
        let mut keys = locked(&self.0[shard(target)]);
        // Read under the lock, under which it is set.
        if let Some(charged_us) = stamp.get() {
            return Some(charged_us);
        }
        let kept = keys.get_mut(target)?;
        if kept.stamp.as_ref().is_some_and(|own| own.is(stamp)) {
            kept.record.refund(&kept.share, units, Some(admitted_us), now_us);
            let units = units.min(kept.charged);
            kept.charged -= units;
            kept.given_back += units;
        }
        None
    }
}

fn shard(target: &Target) -> usize {
    target.keyed_hash.0 as usize % SHARDS
}

fn locked(keys: &Mutex<Keys>) -> MutexGuard<'_, Keys> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keys {
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn get_mut(&mut self, target: &Target) -> Option<&mut Kept> {
        self.young.get_mut(target).or_else(|| self.old.get_mut(target))
    }

    fn remove(&mut self, target: &Target) {
        self.young.remove(target);
        self.old.remove(target);
    }

    fn uncharged(&mut self, now_us: u64, is_wanted: impl Fn(HashTag) -> bool) -> Vec<(Target, u64)> {
        let mut uncharged = Vec::new();
        for keys in [&mut self.young, &mut self.old] {
            keys.retain(|target, kept| {
                let units = kept.uncharged(now_us);
                kept.given_back = 0;
                if units > 0 && is_wanted(target.hash_tag) {
                    uncharged.push((target.clone(), units));
                }
                units > 0
            });
        }
        uncharged
    }

    /// Takes a known key's record out, to be changed and put back by [`take_back`](Self::take_back).
    fn lend(&mut self, target: &Target, share: &Quota, now_us: u64) -> Option<Record> {
        if !self.young.contains_key(target) {
            let (target, kept) = self.old.remove_entry(target)?;
            self.insert(target, kept);
        }
        let kept = self.young.get_mut(target)?;
        if kept.record.has_expired(now_us) {
            self.young.remove(target);
            return None;
        }
        kept.share = *share;
        Some(std::mem::take(&mut kept.record))
    }

    fn take_back(&mut self, target: &Target, share: &Quota, record: Record, charged: u64) {
        match self.get_mut(target) {
            Some(kept) => {
                kept.record = record;
                kept.charged = kept.charged.saturating_add(charged);
            }
            // A peek at an unused key stores nothing.
            None if record == Record::default() => {}
            None => {
                let kept = Kept { share: *share, record, charged, given_back: 0, stamp: None };
                self.insert(target.clone(), kept);
            }
        }
    }

    fn insert(&mut self, target: Target, kept: Kept) {
        if self.young.len() >= self.max_young {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(target, kept);
    }
}

impl Kept {
    /// Returns the units to charge to the store: those admitted here that are still used. The rest has
    /// drained, or its window has ended.
    fn uncharged(&self, now_us: u64) -> u64 {
        if self.record.has_expired(now_us) {
            return 0;
        }
        let algorithm = self.share.kind().algorithm();
        let seen = algorithm.settle(&self.record.state, now_us);
        let used = self.share.limit().saturating_sub(algorithm.remaining(seen, now_us));
        used.min(self.charged)
    }
}

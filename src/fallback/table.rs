//! The keys that the fallback decides: the reference on a map, bounded as the in-memory store is.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::part::Part;
use crate::algorithm::{self, Record};
use crate::fingerprint::AsTheyAre;
use crate::key::Place;
use crate::quota::Quota;
use crate::store::{Outcome, Target};

const SHARDS: usize = 16;

/// Sharded, so that threads seldom contend for a lock.
pub(super) struct Table(Box<[Mutex<Keys>]>);

/// Two generations: when the young one is full it becomes the old one, and what
/// was old is forgotten, with what it owes. So many keys were asked for since.
struct Keys {
    young: HashMap<Target, Kept, AsTheyAre>,
    old: HashMap<Target, Kept, AsTheyAre>,
    max_young: usize,
}

struct Kept {
    share: Quota,
    record: Record,
    /// Units that were admitted here.
    charged: u64,
}

impl Table {
    pub(super) fn new(max_keys: usize) -> Self {
        let max_young = max_keys.div_ceil(2 * SHARDS).max(1);
        let keys = || Mutex::new(Keys { young: HashMap::default(), old: HashMap::default(), max_young });
        Self((0..SHARDS).map(|_| keys()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|keys| locked(keys).len()).sum()
    }

    /// Takes all parts or none. `warm` returns the state that a key starts from that is not in the table.
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

    /// The units that were admitted here and still count, of keys with the given hash tags. Forgets
    /// all keys that owe nothing.
    pub(super) fn owed(&self, now_us: u64, is_wanted: impl Fn(Place) -> bool) -> Vec<(Target, u64)> {
        self.0.iter().flat_map(|keys| locked(keys).owed(now_us, &is_wanted)).collect()
    }

    /// Forgets what has been charged to the store, and with it what was decided
    /// here, unless more came in the meantime. `note` is told of it before anybody
    /// begins anew.
    pub(super) fn settle(&self, target: &Target, units: u64, now_us: u64, note: impl Fn(&Quota, &Record)) {
        let mut keys = locked(&self.0[shard(target)]);
        let Keys { young, old, .. } = &mut *keys;
        for keys in [young, old] {
            let Some(kept) = keys.get_mut(target) else { continue };
            kept.charged = kept.owed(now_us).saturating_sub(units);
            if kept.charged == 0 {
                note(&kept.share, &kept.record);
                keys.remove(target);
            }
        }
    }
}

fn shard(target: &Target) -> usize {
    target.fingerprint.0 as usize % SHARDS
}

fn locked(keys: &Mutex<Keys>) -> MutexGuard<'_, Keys> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keys {
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn owed(&mut self, now_us: u64, is_wanted: impl Fn(Place) -> bool) -> Vec<(Target, u64)> {
        let mut owed = Vec::new();
        for keys in [&mut self.young, &mut self.old] {
            keys.retain(|target, kept| {
                let units = kept.owed(now_us);
                if units > 0 && is_wanted(target.place) {
                    owed.push((target.clone(), units));
                }
                units > 0
            });
        }
        owed
    }

    /// Takes a known key's record out, to be changed and given back.
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
        let keys = if self.young.contains_key(target) { &mut self.young } else { &mut self.old };
        match keys.get_mut(target) {
            Some(kept) => {
                kept.record = record;
                kept.charged = kept.charged.saturating_add(charged);
            }
            // A peek at an untouched key leaves no trace.
            None if record == Record::default() => {}
            None => self.insert(target.clone(), Kept { share: *share, record, charged }),
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
    /// Of what was charged here, no more than is still used: the rest has
    /// drained, or its window has ended.
    fn owed(&self, now_us: u64) -> u64 {
        if self.record.has_expired(now_us) {
            return 0;
        }
        let algorithm = self.share.kind().algorithm();
        let seen = algorithm.settle(&self.record.state, now_us);
        let used = self.share.limit().saturating_sub(algorithm.remaining(seen, now_us));
        used.min(self.charged)
    }
}

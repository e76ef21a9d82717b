//! What was decided here: the reference on a map, bounded as the in-memory store is.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::algorithm::{self, Record};
use crate::quota::Quota;
use crate::store::{Item, Outcome, Target};

const PARTS: usize = 16;

/// In parts, so that threads seldom wait for each other.
pub(super) struct Table(Box<[Mutex<Keys>]>);

/// Two generations: when the young one is full it becomes the old one, and what
/// was old is forgotten, with what it owes. So many keys were asked for since.
struct Keys {
    young: HashMap<String, Kept>,
    old: HashMap<String, Kept>,
    max_young: usize,
}

struct Kept {
    target: Target,
    share: Quota,
    record: Record,
    /// Units that were admitted here.
    charged: u64,
}

impl Table {
    pub(super) fn new(max_keys: usize) -> Self {
        let max_young = max_keys.div_ceil(2 * PARTS).max(1);
        let keys = || Mutex::new(Keys { young: HashMap::new(), old: HashMap::new(), max_young });
        Self((0..PARTS).map(|_| keys()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|keys| locked(keys).len()).sum()
    }

    /// All or nothing. `warm` is what a key that is not known here begins with.
    pub(super) fn take(
        &self,
        items: &[Item],
        shares: &[Quota],
        n: u64,
        now_us: u64,
        warm: impl Fn(&Target, &Quota) -> Record,
    ) -> Outcome {
        // Always in the same order, so that two groups do not wait for each other.
        let mut parts: SmallVec<[usize; 1]> = items.iter().map(|item| part(&item.target)).collect();
        parts.sort_unstable();
        parts.dedup();
        let mut guards: SmallVec<[_; 1]> = parts.iter().map(|&part| locked(&self.0[part])).collect();
        let guard_of = |target: &Target| parts.binary_search(&part(target)).unwrap_or(0);

        let mut kept: SmallVec<[(String, Kept); 1]> = items
            .iter()
            .zip(shares)
            .map(|(item, share)| guards[guard_of(&item.target)].remove(item, share, now_us, &warm))
            .collect();
        let mut asked: SmallVec<[algorithm::Item<'_>; 1]> = items
            .iter()
            .zip(shares)
            .zip(&mut kept)
            .map(|((item, quota), (_, kept))| algorithm::Item {
                quota,
                record: &mut kept.record,
                cost: item.cost,
                max_delay: item.max_delay_us,
            })
            .collect();
        let (k, before) = algorithm::take(&mut asked, n, now_us);
        drop(asked);
        for (item, (key, mut kept)) in items.iter().zip(kept) {
            kept.charged = kept.charged.saturating_add(k * item.cost);
            // A peek at an untouched key leaves no trace.
            if kept.record != Record::default() {
                guards[guard_of(&item.target)].insert(key, kept);
            }
        }
        Outcome { k, before: before.into(), now_us }
    }

    /// All that was admitted here and still counts. What owes nothing is forgotten.
    pub(super) fn owed(&self, now_us: u64) -> Vec<(Target, u64)> {
        self.0.iter().flat_map(|keys| locked(keys).owed(now_us)).collect()
    }

    /// Forgets what has been charged to the store, and with it what was decided
    /// here, unless more came in the meantime. `note` is told of it before anybody
    /// begins anew.
    pub(super) fn settle(&self, target: &Target, units: u64, now_us: u64, note: impl Fn(&Quota, &Record)) {
        let mut keys = locked(&self.0[part(target)]);
        let Keys { young, old, .. } = &mut *keys;
        for keys in [young, old] {
            let Some(kept) = keys.get_mut(&target.redis_key) else { continue };
            kept.charged = kept.owed(now_us).saturating_sub(units);
            if kept.charged == 0 {
                note(&kept.share, &kept.record);
                keys.remove(&target.redis_key);
            }
        }
    }
}

fn part(target: &Target) -> usize {
    target.fingerprint.0 as usize % PARTS
}

fn locked(keys: &Mutex<Keys>) -> MutexGuard<'_, Keys> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keys {
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn owed(&mut self, now_us: u64) -> Vec<(Target, u64)> {
        let mut owed = Vec::new();
        for keys in [&mut self.young, &mut self.old] {
            keys.retain(|_, kept| {
                let units = kept.owed(now_us);
                if units > 0 {
                    owed.push((kept.target.clone(), units));
                }
                units > 0
            });
        }
        owed
    }

    fn remove(
        &mut self,
        item: &Item,
        share: &Quota,
        now_us: u64,
        warm: impl Fn(&Target, &Quota) -> Record,
    ) -> (String, Kept) {
        let key = &item.target.redis_key;
        match self.young.remove_entry(key).or_else(|| self.old.remove_entry(key)) {
            Some((key, kept)) if !kept.record.has_expired(now_us) => (key, Kept { share: *share, ..kept }),
            _ => {
                let record = warm(&item.target, share);
                let target = item.target.clone();
                (key.clone(), Kept { target, share: *share, record, charged: 0 })
            }
        }
    }

    fn insert(&mut self, key: String, kept: Kept) {
        if self.young.len() >= self.max_young {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, kept);
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

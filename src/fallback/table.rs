//! What was decided here: the reference on a map, bounded as the in-memory store is.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::algorithm::{self, Before, Record};
use crate::quota::Quota;
use crate::store::{Item, Outcome, Target};

/// Two generations: when the young one is full it becomes the old one, and what
/// was old is forgotten, with what it owes. So many keys were asked for since.
pub(super) struct Table {
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
        Self { young: HashMap::new(), old: HashMap::new(), max_young: (max_keys / 2).max(1) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// `warm` is what a key that is not known here begins with.
    pub(super) fn take(
        &mut self,
        items: &[Item],
        shares: &[Quota],
        n: u64,
        now_us: u64,
        warm: impl Fn(&Target, &Quota) -> Record,
    ) -> Outcome {
        let mut kept: SmallVec<[(String, Kept); 1]> =
            items.iter().zip(shares).map(|(item, share)| self.remove(item, share, now_us, &warm)).collect();
        let mut parts: Vec<algorithm::Item<'_>> = items
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
        let (k, before): (u64, Vec<Before>) = algorithm::take(&mut parts, n, now_us);
        for (item, (key, mut kept)) in items.iter().zip(kept) {
            kept.charged = kept.charged.saturating_add(k * item.cost);
            // A peek at an untouched key leaves no trace.
            if kept.record != Record::default() {
                self.insert(key, kept);
            }
        }
        Outcome { k, before: before.into(), now_us }
    }

    /// All that was admitted here and still counts. What owes nothing is forgotten.
    pub(super) fn owed(&mut self, now_us: u64) -> Vec<(Target, u64)> {
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

    /// Forgets what has been charged to the store, and with it what was decided
    /// here; unless more came in the meantime.
    pub(super) fn settle(&mut self, target: &Target, units: u64, now_us: u64) {
        for keys in [&mut self.young, &mut self.old] {
            let Some(kept) = keys.get_mut(&target.redis_key) else { continue };
            let more = kept.owed(now_us).saturating_sub(units);
            kept.charged = more;
            if more == 0 {
                keys.remove(&target.redis_key);
            }
        }
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

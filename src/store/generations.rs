//! A bounded map of keys, in two generations. It evicts the keys inserted least recently, and keeps those that
//! have used most of their limits.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use crate::quota::Quota;
use crate::quota::reference::Record;

/// When the young generation is full it becomes the old one, and the previous old one is dropped. So there
/// is no list and no sampling.
///
/// Values of a dropped generation that have a rank move to the new one, the highest ranks first, but at most
/// half as many as a generation holds. Therefore:
///
/// - No key with a rank is evicted while at most `max_young / 2` keys have one.
/// - Any other key is evicted only after `max_young / 2` other keys were inserted since its last insertion, or
///   after `max_young` if no key has a rank.
pub(crate) struct Generations<K, V, S> {
    young: HashMap<K, V, S>,
    old: HashMap<K, V, S>,
    max_young: usize,
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> Generations<K, V, S> {
    /// Holds at most `2 * max_young` keys.
    pub(crate) fn new(max_young: usize) -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), max_young: max_young.max(1) }
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub(crate) fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.young.get_mut(key).or_else(|| self.old.get_mut(key))
    }

    /// Changes the value of a key, which counts as its last insertion: see [`insert`](Self::insert). Returns `None` for a
    /// key that is not in the map.
    pub(crate) fn update<T, R: Ord>(
        &mut self,
        key: &K,
        rank: impl Fn(&V) -> Option<R>,
        change: impl FnOnce(&mut V) -> T,
    ) -> Option<T> {
        if let Some(value) = self.young.get_mut(key) {
            return Some(change(value));
        }
        let (key, mut value) = self.old.remove_entry(key)?;
        let changed = change(&mut value);
        self.insert(key, value, rank);
        Some(changed)
    }

    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// Inserts a key that is not in the map. Calls `rank` for each value of a generation that is dropped.
    pub(crate) fn insert<R: Ord>(&mut self, key: K, value: V, rank: impl Fn(&V) -> Option<R>) {
        if self.young.len() >= self.max_young {
            self.drop_old(rank);
        }
        self.young.insert(key, value);
    }

    #[cold]
    fn drop_old<R: Ord>(&mut self, rank: impl Fn(&V) -> Option<R>) {
        let mut dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        let ranked = dropped.drain().filter_map(|(key, value)| Some((rank(&value)?, key, value)));
        let mut ranked: Vec<_> = ranked.collect();
        let max_kept = self.max_young / 2;
        if ranked.len() > max_kept {
            ranked.select_nth_unstable_by(max_kept, |(one, ..), (other, ..)| other.cmp(one));
            ranked.truncate(max_kept);
        }
        // Reuses the allocation, so that the new generation does not grow step by step.
        dropped.extend(ranked.into_iter().map(|(_, key, value)| (key, value)));
        self.young = dropped;
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.young.retain(&mut keep);
        self.old.retain(&mut keep);
    }
}

/// Orders keys by the harm of their eviction: blocked keys by the end of the block, above keys by the used
/// eighths of the limit, then by the used units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EvictionRank {
    blocked_until_us: u64,
    eighths: u64,
    used: u64,
}

impl EvictionRank {
    /// Returns `None` if the key is not blocked and has more than half of its limit left, or, in flight, all of it. Half,
    /// because a client could stop one unit before the limit, and be evicted with almost all of it used.
    pub(crate) fn of(record: &Record, quota: &Quota, now_us: u64) -> Option<Self> {
        if record.has_expired(now_us) {
            return None;
        }
        let (algorithm, limit) = (quota.kind().algorithm(), quota.limit());
        let left = algorithm.remaining(algorithm.settle(&record.state, now_us), now_us);
        let used = limit.saturating_sub(left);
        // At most 2^48 * 8.
        let eighths = used * 8 / limit.max(1);
        let blocked_until_us = if record.blocked_until_us > now_us { record.blocked_until_us } else { 0 };
        let is_held = quota.is_in_flight() && used > 0;
        (blocked_until_us > 0 || eighths >= 4 || is_held).then_some(Self { blocked_until_us, eighths, used })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;
    use std::time::Duration;

    use super::*;
    use crate::quota::Rate;

    type Map = Generations<u32, u32, RandomState>;

    fn unranked(_: &u32) -> Option<u32> {
        None
    }

    #[test]
    fn a_key_is_lost_only_after_as_many_other_keys_as_a_generation_holds() {
        let mut map = Map::new(3);
        map.insert(0, 0, unranked);
        for other in 1..100 {
            map.update(&0, unranked, |_| ()).expect("used within the last three insertions");
            map.insert(other, other, unranked);
            assert!(map.len() <= 6);
        }
        for other in 100..103 {
            assert!(map.get_mut(&0).is_some());
            map.insert(other, other, unranked);
        }
        for other in 103..106 {
            map.insert(other, other, unranked);
        }
        assert!(map.get_mut(&0).is_none());
    }

    /// Inserts keys with the ranks 1 to `ranked`, then 1,000 keys without a rank. Returns the ranked keys left.
    fn ranked_keys_left(max_young: usize, ranked: u32) -> Vec<u32> {
        let rank = |value: &u32| (*value > 0).then_some(*value);
        let mut map = Map::new(max_young);
        for key in 1..=ranked {
            map.insert(key, key, rank);
        }
        for key in 1_001..=2_000 {
            map.insert(key, 0, rank);
            assert!(map.len() <= 2 * max_young);
        }
        (1..=ranked).filter(|key| map.get_mut(key).is_some()).collect()
    }

    #[test]
    fn ranked_keys_stay_up_to_half_a_generation_and_the_highest_ranks_first() {
        assert!(ranked_keys_left(8, 0).is_empty());
        assert_eq!(ranked_keys_left(8, 1), [1]);
        assert_eq!(ranked_keys_left(8, 4), [1, 2, 3, 4], "at the limit");
        assert_eq!(ranked_keys_left(8, 5), [2, 3, 4, 5], "one past it");
        assert_eq!(ranked_keys_left(8, 8), [5, 6, 7, 8]);
        assert_eq!(ranked_keys_left(2, 2), [2]);
        assert!(ranked_keys_left(1, 1).is_empty(), "half of one key is none");
    }

    #[test]
    fn an_unranked_key_is_lost_only_after_half_a_generation_of_others() {
        let rank = |value: &u32| (*value > 0).then_some(*value);
        let mut map = Map::new(8);
        // From the third generation on, each begins with four ranked keys.
        for key in 1..=8 {
            map.insert(key, key, rank);
        }
        for key in 101..200 {
            map.insert(key, 0, rank);
            for recent in key.saturating_sub(4).max(101)..=key {
                assert!(map.get_mut(&recent).is_some(), "{recent} after {key}");
            }
        }
    }

    const NOW_US: u64 = 1_767_225_600_000_000;

    #[test]
    fn a_key_has_a_rank_from_half_of_its_limit_on() {
        let day = Duration::from_secs(86_400);
        for quota in [
            Quota::token_bucket(10, Rate::new(10, day)),
            Quota::leaky_bucket(10, Rate::new(10, day)),
            Quota::fixed_window(10, day),
            Quota::sliding_log(10, day),
            Quota::sliding_counter(10, day),
        ] {
            let rank = |units, later_us| {
                let mut record = Record::default();
                record.penalize(&quota, units, NOW_US);
                EvictionRank::of(&record, &quota, NOW_US + later_us)
            };
            assert_eq!(rank(0, 0), None, "{quota}");
            assert_eq!(rank(4, 0), None, "{quota}");
            let ranks = [5, 9, 10].map(|units| rank(units, 0).expect("half is used"));
            assert!(ranks.is_sorted_by(|one, other| one < other), "{quota}: {ranks:?}");
            assert_eq!(rank(11, 0), rank(10, 0), "{quota}: beyond the limit");
            assert_eq!(rank(10, 3 * 86_400_000_000), None, "{quota}: expired");
        }
    }

    #[test]
    fn a_blocked_key_has_the_highest_rank_until_its_block_ends() {
        let quota = Quota::fixed_window(10, Duration::from_secs(86_400));
        let rank = |units, blocked_us, later_us| {
            let mut record = Record::default();
            record.penalize(&quota, units, NOW_US);
            record.block(&quota, NOW_US + blocked_us, NOW_US);
            EvictionRank::of(&record, &quota, NOW_US + later_us)
        };
        assert!(rank(0, 2_000, 1_999) > rank(10, 0, 1_999));
        assert!(rank(0, 3_000, 0) > rank(10, 2_000, 0), "the longer block");
        assert!(rank(10, 2_000, 0) > rank(9, 2_000, 0));
        assert_eq!(rank(0, 2_000, 2_000), None, "at its end");
        assert_eq!(rank(10, 2_000, 2_000), rank(10, 0, 2_000));
    }
}

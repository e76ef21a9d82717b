//! A bounded map that drops the keys inserted least recently, in two generations.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// When the young generation is full it becomes the old one, and the previous old one is dropped. So there
/// is no list and no sampling, and a key is lost only after `max_young` other keys were inserted since its
/// last insertion.
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

    /// Removes a key, to be inserted again if it is in use.
    pub(crate) fn remove_entry<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.young.remove_entry(key).or_else(|| self.old.remove_entry(key))
    }

    /// Inserts a key that is not in the map.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.max_young {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.young.retain(&mut keep);
        self.old.retain(&mut keep);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;

    use super::Generations;

    #[test]
    fn a_key_is_lost_only_after_as_many_other_keys_as_a_generation_holds() {
        let mut map = Generations::<u32, u32, RandomState>::new(3);
        map.insert(0, 0);
        for other in 1..100 {
            let (key, value) = map.remove_entry(&0).expect("used within the last three insertions");
            map.insert(key, value);
            map.insert(other, other);
            assert!(map.len() <= 6);
        }
        for other in 100..103 {
            assert!(map.get_mut(&0).is_some());
            map.insert(other, other);
        }
        for other in 103..106 {
            map.insert(other, other);
        }
        assert!(map.get_mut(&0).is_none());
    }
}

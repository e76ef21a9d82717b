//! What this process remembers of targets: so many at most, shared by all threads.

use std::hash::{Hash, Hasher};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, UnitWeighter};

use super::Target;
use crate::fingerprint::{AsTheyAre, Fingerprint};

/// Beyond its size, those that are not asked for go first.
pub(crate) struct ByTarget<V>(Cache<Key, V, UnitWeighter, AsTheyAre>);

#[derive(Clone)]
struct Key {
    fingerprint: Fingerprint,
    redis_key: String,
}

impl<V: Clone> ByTarget<V> {
    pub(crate) fn new(most: usize) -> Self {
        let (hasher, lifecycle) = (AsTheyAre::default(), DefaultLifecycle::default());
        Self(Cache::with(most.min(1_024), most as u64, UnitWeighter, hasher, lifecycle))
    }

    pub(crate) fn get(&self, target: &Target) -> Option<V> {
        self.0.get(target)
    }

    pub(crate) fn insert(&self, target: &Target, value: V) {
        let key = Key { fingerprint: target.fingerprint, redis_key: target.redis_key.clone() };
        self.0.insert(key, value);
    }

    pub(crate) fn remove(&self, target: &Target) {
        self.0.remove(target);
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

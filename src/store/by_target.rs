//! What this process remembers of targets: so many at most, shared by all threads.

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::Target;
use crate::fingerprint::AsTheyAre;

/// Beyond its size, those that are not asked for go first.
pub(crate) struct ByTarget<V>(Cache<Target, V, UnitWeighter, AsTheyAre>);

impl<V: Clone> ByTarget<V> {
    pub(crate) fn new(most: usize) -> Self {
        let (hasher, lifecycle) = (AsTheyAre::default(), DefaultLifecycle::default());
        Self(Cache::with(most.min(1_024), most as u64, UnitWeighter, hasher, lifecycle))
    }

    pub(crate) fn get(&self, target: &Target) -> Option<V> {
        self.0.get(target)
    }

    pub(crate) fn insert(&self, target: &Target, value: V) {
        self.0.insert(target.clone(), value);
    }

    pub(crate) fn remove(&self, target: &Target) {
        self.0.remove(target);
    }
}

//! A bounded map from targets to cached values of this process, shared by all threads.

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::Target;
use crate::fingerprint::AsTheyAre;

/// If it is full, entries without recent lookups are evicted first.
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

    pub(crate) fn remove_if(&self, target: &Target, is_so: impl FnOnce(&V) -> bool) {
        self.0.remove_if(target, is_so);
    }
}

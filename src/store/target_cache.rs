//! A bounded map from targets to cached values of this process, shared by all threads.

use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction};

use super::target::Target;
use crate::key::keyed_hash::IdentityHasher;

/// If it is full, entries without recent lookups are evicted first.
pub(crate) struct TargetCache<V>(Cache<Target, V, UnitWeighter, IdentityHasher>);

impl<V: Clone> TargetCache<V> {
    pub(crate) fn new(most: usize) -> Self {
        let (hasher, lifecycle) = (IdentityHasher::default(), DefaultLifecycle::default());
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

    /// Changes a value while it is locked, and removes it unless `change` returns true.
    pub(crate) fn retain(&self, target: &Target, change: impl FnOnce(&mut V) -> bool) {
        let change = |_: &Target, value: &mut V| match change(value) {
            true => EntryAction::Retain(()),
            false => EntryAction::Remove,
        };
        // Without a value, the guard to insert one is dropped.
        drop(self.0.entry(target, Some(Duration::ZERO), change));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::target::GateInfo;
    use super::*;
    use crate::error::gate_name::GateName;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::{Quota, Rate};

    fn target() -> Target {
        let (name, quota) = ("gate", Quota::token_bucket(5, Rate::per_second(1)));
        let gate = GateInfo {
            name: GateName::new(name).unwrap(),
            quota,
            prefix: Keyspace::new("test", KeyMode::Clear).unwrap().prefix(name, &quota).unwrap(),
            keyed_hasher: KeyedHasher::default(),
            counters: None,
        };
        Target::new(&Arc::new(gate), b"key", None)
    }

    #[test]
    fn retain_changes_or_removes_a_value_and_adds_none() {
        let (values, target) = (TargetCache::new(8), target());
        for _ in 0..2 {
            values.retain(&target, |_| true);
            assert_eq!(values.get(&target), None);
            values.insert(&target, 1);
            values.retain(&target, |value| {
                *value += 1;
                true
            });
            assert_eq!(values.get(&target), Some(2));
            values.retain(&target, |_| false);
            assert_eq!(values.get(&target), None);
        }
    }
}

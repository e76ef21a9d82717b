//! Stands for `src/store.rs`: a cache of one target.

use crate::runtime::sync::{Mutex, lock};

pub(crate) struct KeyedHash(pub(crate) u64);

pub(crate) struct Target {
    pub(crate) keyed_hash: KeyedHash,
}

/// A cache whose operations lock the entry, like the cache of the production code.
pub(crate) struct TargetCache<V>(Mutex<Option<V>>);

impl<V: Clone> TargetCache<V> {
    pub(crate) fn new(_most: usize) -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn get(&self, _target: &Target) -> Option<V> {
        lock(&self.0).clone()
    }

    pub(crate) fn insert(&self, _target: &Target, value: V) {
        *lock(&self.0) = Some(value);
    }

    pub(crate) fn remove(&self, _target: &Target) {
        *lock(&self.0) = None;
    }

    pub(crate) fn remove_if(&self, _target: &Target, is_so: impl FnOnce(&V) -> bool) {
        let mut entry = lock(&self.0);
        if entry.as_ref().is_some_and(is_so) {
            *entry = None;
        }
    }

    pub(crate) fn retain(&self, _target: &Target, change: impl FnOnce(&mut V) -> bool) {
        let mut entry = lock(&self.0);
        if entry.as_mut().is_some_and(|value| !change(value)) {
            *entry = None;
        }
    }
}

//! A key as the store names it, and the gate it belongs to.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction, EntryResult};

use crate::error::Error;
use crate::error::gate_name::GateName;
use crate::key::keyed_hash::{IdentityHasher, KeyedHash, KeyedHasher};
use crate::key::{HashTag, Keyspace, Prefix};
use crate::observe::figures::GateCounters;
use crate::quota::Quota;
#[cfg(feature = "regions")]
use crate::regions::Replicated;

/// The part that all checks of one gate share.
#[derive(Clone, Debug)]
pub(crate) struct GateInfo {
    pub(crate) name: GateName,
    pub(crate) quota: Quota,
    pub(crate) prefix: Prefix,
    /// Has hashed the prefix.
    pub(crate) keyed_hasher: KeyedHasher,
    /// Of the gates with this name; `None` if this process publishes no figures.
    pub(crate) counters: Option<Arc<GateCounters>>,
    /// Set if other regions hear of its charges.
    #[cfg(feature = "regions")]
    pub(crate) replicated: Option<Replicated>,
}

impl GateInfo {
    pub(crate) fn new(
        keyspace: &Keyspace,
        keyed_hasher: &KeyedHasher,
        name: &str,
        quota: Quota,
    ) -> Result<Self, Error> {
        Self::with_prefix(keyspace.prefix(name, &quota)?, keyed_hasher, name, quota)
    }

    fn with_prefix(
        prefix: Prefix,
        keyed_hasher: &KeyedHasher,
        name: &str,
        quota: Quota,
    ) -> Result<Self, Error> {
        // The name is part of the prefix, so its length was checked.
        let name = GateName::new(name).ok_or_else(|| Error::config("a gate's name has at most 64 bytes"))?;
        let keyed_hasher = keyed_hasher.clone().after(prefix.text());
        Ok(Self {
            name,
            quota,
            prefix,
            keyed_hasher,
            counters: None,
            #[cfg(feature = "regions")]
            replicated: None,
        })
    }

    /// Makes a gate whose charges other regions hear of.
    #[cfg(feature = "regions")]
    pub(crate) fn replicated(
        keyspace: &Keyspace,
        keyed_hasher: &KeyedHasher,
        name: &str,
        quota: Quota,
        replicated: Replicated,
    ) -> Result<Self, Error> {
        let info = Self::with_prefix(keyspace.replicated_prefix(name, &quota)?, keyed_hasher, name, quota)?;
        Ok(Self { replicated: Some(replicated), ..info })
    }

    /// Returns whether other regions hear of its charges.
    pub(crate) const fn is_replicated(&self) -> bool {
        #[cfg(feature = "regions")]
        return self.replicated.is_some();
        #[cfg(not(feature = "regions"))]
        false
    }

    /// Returns the part of the quota that one of these processes of each region has while it decides alone.
    pub(crate) fn share(&self, instances: u64) -> Quota {
        #[cfg(feature = "regions")]
        let instances = instances * self.replicated.as_ref().map_or(1, |gate| gate.gossip.regions);
        self.quota.share(instances)
    }
}

/// One key of one gate, as the store names it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) gate: Arc<GateInfo>,
    pub(crate) redis_key: String,
    /// The hash of `redis_key`: of its prefix, then of the rest.
    pub(crate) keyed_hash: KeyedHash,
    /// Keys with different hash tags need separate calls.
    pub(crate) hash_tag: HashTag,
}

impl Target {
    /// Uses the hash tag of `colocate_with` if given, else of the key.
    #[inline]
    pub(crate) fn new(gate: &Arc<GateInfo>, key: &[u8], colocate_with: Option<&[u8]>) -> Self {
        Self::at(gate, key, gate.prefix.hash_tag(colocate_with.unwrap_or(key)))
    }

    /// Uses this hash tag for any key.
    #[inline]
    pub(crate) fn at(gate: &Arc<GateInfo>, key: &[u8], hash_tag: HashTag) -> Self {
        Self::of_redis_key(gate, gate.prefix.key(key, hash_tag), hash_tag)
    }

    /// Names a key that is encoded for Redis already.
    pub(crate) fn of_encoded(gate: &Arc<GateInfo>, encoded: &str, hash_tag: HashTag) -> Self {
        Self::of_redis_key(gate, gate.prefix.key_of_encoded(encoded, hash_tag), hash_tag)
    }

    #[inline]
    pub(crate) fn of_redis_key(gate: &Arc<GateInfo>, redis_key: String, hash_tag: HashTag) -> Self {
        // An operator may name a key without the prefix of the gate.
        let rest = redis_key.strip_prefix(gate.prefix.text()).unwrap_or(&redis_key);
        Self { keyed_hash: gate.keyed_hasher.of(rest), redis_key, hash_tag, gate: gate.clone() }
    }

    /// Returns the Redis key of the open holds of this key.
    pub(crate) fn holds_key(&self) -> String {
        self.gate.prefix.holds_key(&self.redis_key)
    }

    /// Returns the Redis key of the share of this replicated key.
    #[cfg(feature = "regions")]
    pub(crate) fn share_key(&self) -> String {
        self.gate.prefix.share_key(&self.redis_key)
    }

    /// Returns the Redis key of the count of this key's denials.
    pub(crate) fn denials_key(&self) -> String {
        self.gate.prefix.denials_key(&self.redis_key)
    }

    /// Returns the Redis key of the adaptive limit of this key.
    pub(crate) fn adaptive_key(&self) -> String {
        self.gate.prefix.adaptive_key(&self.redis_key)
    }
}

impl Hash for Target {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.keyed_hash.hash(state);
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.redis_key == other.redis_key
    }
}

impl Eq for Target {}

// A bounded map from targets to cached values of this process, shared by all threads.

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

    /// Inserts a value, unless one is there that `stays`.
    pub(crate) fn insert_unless(&self, target: &Target, value: V, stays: impl FnOnce(&V) -> bool) {
        let replace = |_: &Target, there: &mut V| match stays(there) {
            true => EntryAction::Retain(None),
            false => EntryAction::Retain(Some(std::mem::replace(there, value.clone()))),
        };
        // Waits only while another thread inserts the same target.
        let EntryResult::Vacant(guard) = self.0.entry(target, None, replace) else { return };
        let _ = guard.insert(value);
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

    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::{Quota, Rate};

    fn target() -> Target {
        Target::new(&gate(&KeyedHasher::default()), b"key", None)
    }

    fn gate(keyed_hasher: &KeyedHasher) -> Arc<GateInfo> {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let quota = Quota::token_bucket(5, Rate::per_second(1));
        Arc::new(GateInfo::new(&keyspace, keyed_hasher, "gate", quota).unwrap())
    }

    #[test]
    fn targets_of_one_redis_key_have_one_hash_however_they_are_made() {
        let hasher = KeyedHasher::default();
        let made = Target::new(&gate(&hasher), b"key", None);
        let other_gate = gate(&hasher);
        let encoded = Target::of_encoded(&other_gate, "key", made.hash_tag);
        let named = Target::of_redis_key(&other_gate, made.redis_key.clone(), made.hash_tag);
        for target in [&encoded, &named] {
            assert!(*target == made);
            assert_eq!(target.keyed_hash, made.keyed_hash);
        }
        assert_ne!(Target::new(&other_gate, b"other", None).keyed_hash, made.keyed_hash);
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

//! A key as the store names it, and the gate it belongs to.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::Error;
use crate::error::gate_name::GateName;
use crate::key::keyed_hash::{KeyedHash, KeyedHasher};
use crate::key::{HashTag, Keyspace, Prefix};
use crate::observe::figures::GateCounters;
use crate::quota::Quota;

/// The part that all checks of one gate share.
#[derive(Clone, Debug)]
pub(crate) struct GateInfo {
    pub(crate) name: GateName,
    pub(crate) quota: Quota,
    pub(crate) prefix: Prefix,
    pub(crate) keyed_hasher: KeyedHasher,
    /// Of the gates with this name; `None` if this process publishes no figures.
    pub(crate) counters: Option<Arc<GateCounters>>,
}

impl GateInfo {
    pub(crate) fn new(
        keyspace: &Keyspace,
        keyed_hasher: &KeyedHasher,
        name: &str,
        quota: Quota,
    ) -> Result<Self, Error> {
        let prefix = keyspace.prefix(name, &quota)?;
        // The name is part of the prefix, so its length was checked.
        let name = GateName::new(name).ok_or_else(|| Error::config("a gate's name has at most 64 bytes"))?;
        Ok(Self { name, quota, prefix, keyed_hasher: keyed_hasher.clone(), counters: None })
    }
}

/// One key of one gate, as the store names it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) gate: Arc<GateInfo>,
    pub(crate) redis_key: String,
    /// The keyed_hash of `redis_key`.
    pub(crate) keyed_hash: KeyedHash,
    /// Keys with different hash tags need separate calls.
    pub(crate) hash_tag: HashTag,
}

impl Target {
    /// Uses the hash tag of `colocate_with` if given, else of the key.
    pub(crate) fn new(gate: &Arc<GateInfo>, key: &[u8], colocate_with: Option<&[u8]>) -> Self {
        Self::at(gate, key, gate.prefix.hash_tag(colocate_with.unwrap_or(key)))
    }

    /// Uses this hash tag for any key.
    pub(crate) fn at(gate: &Arc<GateInfo>, key: &[u8], hash_tag: HashTag) -> Self {
        Self::of_redis_key(gate, gate.prefix.key(key, hash_tag), hash_tag)
    }

    /// Names a key that is encoded for Redis already.
    pub(crate) fn of_encoded(gate: &Arc<GateInfo>, encoded: &str, hash_tag: HashTag) -> Self {
        Self::of_redis_key(gate, gate.prefix.key_of_encoded(encoded, hash_tag), hash_tag)
    }

    fn of_redis_key(gate: &Arc<GateInfo>, redis_key: String, hash_tag: HashTag) -> Self {
        Self { keyed_hash: gate.keyed_hasher.of(&redis_key), redis_key, hash_tag, gate: gate.clone() }
    }

    /// Returns the Redis key of the open holds of this key.
    pub(crate) fn holds_key(&self) -> String {
        self.gate.prefix.holds_key(&self.redis_key)
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

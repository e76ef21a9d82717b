//! Adaptive in-flight limits: the copies and the observations of this process.
//!
//! The store keeps one adaptive limit per key, and all processes [report](AdaptiveKey::exchange) to it. A copy has
//! the limit of the last reply. Reports are sent in the background, by the first operation that finds one due: so
//! an unused key costs nothing. The first acquire, also after a pause, reports before it is sent.
//!
//! [`copy`] is arithmetic without I/O; [`key`] reports; [`settings`] are those of a gate.

mod copy;
mod key;
mod settings;

use std::sync::Arc;

pub(crate) use self::key::{AdaptiveKey, Operation, Settings};
pub use self::settings::Adaptive;
use crate::key::keyed_hash::IdentityHasher;
use crate::quota::reference::adapt::Bounds;
use crate::runtime::sync::{Mutex, lock};
use crate::store::Target;
use crate::store::generations::Generations;

/// The maximum number of keys. A key that was evicted asks the store for its limit again.
const MAX_KEYS: usize = 1 << 16;

/// The adaptive limits of one limiter.
pub(crate) struct AdaptiveLimits {
    settings: Arc<Settings>,
    keys: Mutex<Generations<Target, Arc<AdaptiveKey>, IdentityHasher>>,
}

impl AdaptiveLimits {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), keys: Mutex::new(Generations::new(MAX_KEYS / 2)) }
    }

    /// Returns the limit of a key, which is added if needed. From now on, these bounds apply.
    pub(crate) fn key(&self, target: &Target, bounds: Bounds) -> Arc<AdaptiveKey> {
        let mut keys = lock(&self.keys);
        // Inserted again, so that keys in use are evicted last.
        let found = keys.remove_entry(target);
        let new = || (target.clone(), Arc::new(AdaptiveKey::new(&self.settings, target, bounds)));
        let (target, key) = found.unwrap_or_else(new);
        keys.insert(target, key.clone(), |_| None::<u64>);
        drop(keys);
        key.set_bounds(bounds);
        key
    }

    /// Returns the limit of a key if this process knows it.
    pub(crate) fn known(&self, target: &Target) -> Option<u64> {
        lock(&self.keys).get_mut(target)?.limit()
    }
}

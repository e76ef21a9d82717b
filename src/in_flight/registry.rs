//! The keys of which this process holds units, or for which its callers wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::Notify;

use super::holder::OwnHolder;
use super::key_state::{Circumstances, KeyState};
use crate::key::keyed_hash::IdentityHasher;
use crate::runtime::sync::{Mutex, lock};
use crate::store::Target;

/// The maximum number of keys. A key is there while a permit is held, a caller waits, or the store may count
/// other units than this process holds.
const MAX_KEYS: usize = 1 << 20;

/// One key.
pub(super) struct KeyEntry {
    /// With the gate that used the key first.
    pub(super) target: Target,
    pub(super) holder: Arc<OwnHolder>,
    pub(super) state: Mutex<KeyState>,
    /// Wakes the driver.
    pub(super) wake: Notify,
}

#[derive(Default)]
pub(super) struct Registry(Mutex<HashMap<Target, Arc<KeyEntry>, IdentityHasher>>);

impl Registry {
    /// Changes the state of a key, which is added if needed. Returns `None` if there is no room.
    ///
    /// The registry stays locked meanwhile, so that the key is not removed.
    pub(super) fn change<T>(
        &self,
        target: &Target,
        holder: &Arc<OwnHolder>,
        change: impl FnOnce(&mut KeyState) -> T,
    ) -> Option<(Arc<KeyEntry>, T)> {
        let mut keys = lock(&self.0);
        if let Some(key) = keys.get(target) {
            let changed = change(&mut lock(&key.state));
            return Some((key.clone(), changed));
        }
        if keys.len() >= MAX_KEYS {
            return None;
        }
        let state = KeyState::new();
        let (target, holder) = (target.clone(), holder.clone());
        let key = Arc::new(KeyEntry { target, holder, state: Mutex::new(state), wake: Notify::new() });
        let changed = change(&mut lock(&key.state));
        key.holder.keys.fetch_add(1, Ordering::SeqCst);
        keys.insert(key.target.clone(), key.clone());
        Some((key, changed))
    }

    /// Removes a key that is not used any more.
    pub(super) fn remove_unused(&self, key: &Arc<KeyEntry>, now: &Circumstances) {
        let mut keys = lock(&self.0);
        let state = lock(&key.state);
        let is_listed = keys.get(&key.target).is_some_and(|listed| Arc::ptr_eq(listed, key));
        if is_listed && !state.is_driven && state.is_unused(now) {
            keys.remove(&key.target);
            key.holder.idle_since_us.store(now.now_us, Ordering::SeqCst);
            key.holder.keys.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Returns a key that is in use.
    pub(super) fn get(&self, target: &Target) -> Option<Arc<KeyEntry>> {
        lock(&self.0).get(target).cloned()
    }

    /// Returns all keys.
    pub(super) fn all(&self) -> Vec<Arc<KeyEntry>> {
        lock(&self.0).values().cloned().collect()
    }

    /// Returns the keys of one holder.
    pub(super) fn of(&self, holder: &OwnHolder) -> Vec<Arc<KeyEntry>> {
        let keys = lock(&self.0);
        keys.values().filter(|key| key.target.hash_tag == holder.hash_tag).cloned().collect()
    }
}

//! The state that a store keeps, in the same form for every store.

use std::collections::BTreeMap;

use tidegate::Quota;

use super::call::{Call, KEYS, Name, Reply};

/// The units of a holder, and the number of the message that set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub units: u64,
    pub number: u64,
}

/// A key of an in-flight limit that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permits {
    pub entries: BTreeMap<Name, Entry>,
    /// The stored sum of all entries.
    pub held: u64,
    pub sure_until_us: u64,
    pub blocked_until_us: u64,
}

/// The level of a token bucket that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub ticks: u64,
    pub at_us: u64,
}

/// A value, and its expiry in ms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<T> {
    pub value: T,
    pub expires_ms: u64,
}

/// The end of each lease.
pub type Leases = BTreeMap<Name, u64>;

/// Everything that a store keeps. `None`: the key does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub keys: [Option<Kept<Permits>>; KEYS],
    pub leases: Option<Kept<Leases>>,
    pub bucket: Option<Kept<Level>>,
}

impl State {
    pub fn lease_end(&self, name: &str) -> Option<u64> {
        self.leases.as_ref()?.value.get(name).copied()
    }

    pub fn is_live(&self, name: &str, now: u64) -> bool {
        self.lease_end(name).is_some_and(|end| now < end)
    }

    pub fn units(&self, key: usize, name: &str) -> u64 {
        let permits = self.keys[key].as_ref();
        permits.and_then(|permits| permits.value.entries.get(name)).map_or(0, |entry| entry.units)
    }

    /// Returns the units of all live holders of a key.
    pub fn live_units(&self, key: usize, now: u64) -> u64 {
        let entries = self.keys[key].iter().flat_map(|permits| &permits.value.entries);
        entries.filter(|(name, _)| self.is_live(name, now)).map(|(_, entry)| entry.units).sum()
    }

    /// Removes the keys that a call names and that have expired. Returns the removed keys of in-flight limits.
    pub fn expire(&mut self, call: &Call, now: u64) -> Vec<usize> {
        fn expire<T>(kept: &mut Option<Kept<T>>, now: u64) -> bool {
            kept.take_if(|kept| now / 1_000 > kept.expires_ms).is_some()
        }
        if call.names_leases() {
            expire(&mut self.leases, now);
        }
        if call.names_bucket() {
            expire(&mut self.bucket, now);
        }
        call.keys().into_iter().filter(|key| expire(&mut self.keys[*key], now)).collect()
    }
}

/// A store of in-flight limits whose clock the test controls.
pub trait Store {
    /// Removes everything. The bucket of the next calls has this quota.
    fn clear(&mut self, bucket: Quota);

    /// Calls the store, and returns its reply and all its state after the call. Keys that the call does not name
    /// need not have expired.
    ///
    /// # Errors
    ///
    /// A reply that no store of tidegate sends.
    fn call(&mut self, call: &Call, now: u64) -> Result<(Reply, State), String>;
}

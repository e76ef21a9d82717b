//! A holder: this process as the store knows it, with one lease per hash tag.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::key::HashTag;
use crate::runtime::sync::{Mutex, lock};
use crate::store::LeaseReply;

/// The maximum length of the host's name in the name of a lease.
const MAX_HOST: usize = 40;

pub(super) struct OwnHolder {
    pub(super) hash_tag: HashTag,
    /// The key in which the store keeps the leases.
    pub(super) redis_key: String,
    lease: Mutex<Option<HolderLease>>,
    leases: AtomicU64,
    messages: AtomicU64,
    /// Locked while a lease is opened, and while the keys are told that one lapsed.
    pub(super) opening: tokio::sync::Mutex<()>,
    /// Notified when a lease ends.
    pub(super) changed: Notify,
    /// The number of keys with permits or callers.
    pub(super) keys: AtomicUsize,
    /// When the last key was removed, by the local clock.
    pub(super) idle_since_us: AtomicU64,
}

/// The time for which the store counts the units of this process.
#[derive(Clone, Debug)]
pub(crate) struct HolderLease {
    /// Serves one lease only.
    pub(super) name: Arc<str>,
    /// Numbers the leases of this process, from 1.
    pub(super) number: u64,
    /// Its end by the server's clock, in µs since 1970.
    pub(super) end_us: u64,
    /// Until when it surely lasts, by the local clock.
    pub(super) valid_until_us: u64,
}

impl OwnHolder {
    pub(super) fn new(hash_tag: HashTag, redis_key: String) -> Self {
        Self {
            hash_tag,
            redis_key,
            lease: Mutex::default(),
            leases: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            opening: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            keys: AtomicUsize::new(0),
            idle_since_us: AtomicU64::new(0),
        }
    }

    pub(super) fn lease(&self) -> Option<HolderLease> {
        lock(&self.lease).clone()
    }

    pub(super) fn lease_number(&self) -> Option<u64> {
        lock(&self.lease).as_ref().map(|lease| lease.number)
    }

    /// Returns the number of the next message.
    pub(super) fn next_message(&self) -> u64 {
        self.messages.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn opened(&self, name: Arc<str>, reply: &LeaseReply, valid_until_us: u64) -> HolderLease {
        let number = self.leases.fetch_add(1, Ordering::Relaxed) + 1;
        let lease = HolderLease { name, number, end_us: reply.end_us, valid_until_us };
        *lock(&self.lease) = Some(lease.clone());
        lease
    }

    pub(super) fn renewed(&self, number: u64, reply: &LeaseReply, valid_until_us: u64) {
        if let Some(lease) = lock(&self.lease).as_mut().filter(|lease| lease.number == number) {
            lease.end_us = reply.end_us;
            lease.valid_until_us = valid_until_us;
        }
    }

    /// Ends a lease. Returns false if it had ended before.
    pub(super) fn end(&self, number: u64) -> bool {
        lock(&self.lease).take_if(|lease| lease.number == number).is_some()
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.keys.load(Ordering::SeqCst) > 0
    }
}

/// Returns a new name: the host, a random number, and the time to live.
pub(super) fn new_name(ttl_ms: u64) -> Arc<str> {
    let host = std::env::var("HOSTNAME").unwrap_or_default();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
    let host: String = host.chars().filter(is_plain).take(MAX_HOST).collect();
    let host = if host.is_empty() { "process" } else { &host };
    format!("{host}.{:016x}/{ttl_ms}", fastrand::u64(..)).into()
}

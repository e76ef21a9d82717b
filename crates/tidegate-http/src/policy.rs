//! The part of a limit that responses report beside its decision; and partition keys, which they report in place of the
//! keys of requests.

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use smallvec::SmallVec;
use tidegate::{Check, Gate, Quota};

/// The partition key of a request: 96 bits, which base64 encodes without padding.
pub(super) type PartitionKey = [u8; 12];

const MIN_SECRET_BYTES: usize = 16;

/// Derives partition keys under a secret: without it, a client cannot test guesses of a key, such as all IPv4 addresses.
#[derive(Clone)]
pub(super) struct PartitionKeys(Hmac<Sha256>);

impl PartitionKeys {
    #[track_caller]
    pub(super) fn new(secret: &[u8]) -> Self {
        assert!(
            secret.len() >= MIN_SECRET_BYTES,
            "the secret of `partition_key` has {} bytes, fewer than {MIN_SECRET_BYTES}: use 32 random ones",
            secret.len()
        );
        #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length");
        // The same secret may also protect keys in Redis or sign tokens: clients must not see those digests.
        mac.update(b"tidegate partition key\0");
        Self(mac)
    }

    /// Returns the partition of a key, which has a state of its own if it is colocated with an owner's key.
    pub(super) fn of(&self, key: &[u8], owner: Option<&[u8]>) -> PartitionKey {
        let mut mac = self.0.clone();
        // The length separates the key from the owner.
        mac.update(&(key.len() as u64).to_be_bytes());
        mac.update(key);
        if let Some(owner) = owner {
            mac.update(b"@");
            mac.update(owner);
        }
        let digest: [u8; 32] = mac.finalize().into_bytes().into();
        std::array::from_fn(|at| digest[at])
    }
}

/// The unit of a policy that names none.
const REQUESTS: &str = "requests";

/// The unit of an in-flight limit, if its rule names none.
const CONCURRENT_REQUESTS: &str = "concurrent-requests";

/// The policies of one request's limits.
pub(super) type Policies = SmallVec<[Policy; 1]>;

/// The name, unit, window and partition of one limit.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// Replaces the gate's name.
    pub(super) name: Option<Arc<str>>,
    /// Replaces the default unit.
    pub(super) unit: Option<Arc<str>>,
    /// The partition of this request, if its rule reports it.
    pub(super) partition_key: Option<PartitionKey>,
    /// At least 1 second. `None` for an in-flight limit, which counts concurrent requests.
    pub(super) window_s: Option<u64>,
    /// Whether the limit denies nothing.
    pub(super) is_shadow: bool,
}

impl Policy {
    pub(super) fn new(gate: &Gate, name: Option<Arc<str>>) -> Self {
        Self::of_quota(gate.quota(), name)
    }

    pub(super) fn of_quota(quota: Option<Quota>, name: Option<Arc<str>>) -> Self {
        Self { name, window_s: quota.and_then(window_s), unit: None, partition_key: None, is_shadow: false }
    }

    /// Takes over the settings that decide this check: an operator's override may have replaced those of the gate.
    pub(super) fn follow(&mut self, check: &Check) {
        self.is_shadow = check.is_shadow();
        self.window_s = check.quota().and_then(window_s);
    }

    /// Returns the policy of a rule of rates that denies all requests and has no quota.
    #[cfg(feature = "rules")]
    pub(super) fn for_zero_limit(name: Arc<str>, window: Duration) -> Self {
        Self { window_s: Some(whole_seconds(window)), ..Self::of_quota(None, Some(name)) }
    }

    pub(super) fn unit(&self) -> &str {
        let default = if self.window_s.is_some() { REQUESTS } else { CONCURRENT_REQUESTS };
        self.unit.as_deref().unwrap_or(default)
    }

    /// Returns the unit to report, or `None` for the default of the drafts, requests.
    pub(super) fn reported_unit(&self) -> Option<&str> {
        Some(self.unit()).filter(|unit| *unit != REQUESTS)
    }
}

/// Returns the window in seconds; `None` of an in-flight limit.
fn window_s(quota: Quota) -> Option<u64> {
    (!quota.is_in_flight()).then(|| whole_seconds(quota.window()))
}

/// Returns the window in seconds, rounded up, at least 1.
fn whole_seconds(window: Duration) -> u64 {
    (window.as_secs() + u64::from(window.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    /// Two versions of a fleet report the same partition. The expected bytes were computed with Python's `hmac`.
    #[test]
    fn partition_key_is_a_pinned_digest() {
        let keys = PartitionKeys::new(SECRET);
        assert_eq!(keys.of(b"k1", None), [183, 141, 137, 131, 49, 124, 188, 211, 49, 62, 158, 252]);
    }

    #[test]
    fn key_and_owner_do_not_run_into_each_other() {
        let keys = PartitionKeys::new(SECRET);
        let partitions = [
            keys.of(b"", None),
            keys.of(b"", Some(b"")),
            keys.of(b"a@b", None),
            keys.of(b"a", Some(b"b")),
            keys.of(b"a@b", Some(b"")),
            keys.of(b"", Some(b"a@b")),
        ];
        for (at, partition) in partitions.iter().enumerate() {
            assert!(!partitions[..at].contains(partition), "{at}");
        }
    }
}

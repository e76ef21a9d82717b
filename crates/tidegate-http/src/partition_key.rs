//! Partition keys: responses report them in place of the keys of requests.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

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

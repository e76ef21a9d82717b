//! The ids of reservations: random, or derived from an id that the caller chose.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use super::format::Id;

/// Returns 96 unpredictable bits: SHA-256 of a secret of the process and a counter.
pub(super) fn random() -> Id {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    first_bytes(Sha256::new().chain_update(*SECRET).chain_update(count.to_be_bytes()))
}

/// Returns the same id for the same text and parts, such as the keys of the reservation. So callers that
/// choose the same text for different keys do not meet in a key that they share.
pub(super) fn derived<'a>(text: &[u8], parts: impl Iterator<Item = &'a [u8]>) -> Id {
    // Each part has its length before it, so that no two lists of parts are the same bytes.
    let framed =
        |hash: Sha256, part: &[u8]| hash.chain_update((part.len() as u64).to_be_bytes()).chain_update(part);
    first_bytes(parts.fold(framed(Sha256::new_with_prefix("tidegate reservation\0"), text), framed))
}

/// 128 bits that the system's source of randomness gave to the keys of [`RandomState`].
static SECRET: LazyLock<[u8; 32]> = LazyLock::new(|| {
    // Hashes of different numbers under secret keys: each reveals nothing of the keys, and all depend on all
    // of their bits.
    let state = RandomState::new();
    let words: [u64; 4] = std::array::from_fn(|number| state.hash_one(number));
    let mut secret = [0; 32];
    secret
        .chunks_exact_mut(8)
        .zip(words)
        .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
    secret
});

fn first_bytes(hash: Sha256) -> Id {
    let digest: [u8; 32] = hash.finalize().into();
    let mut id = [0; 12];
    id.copy_from_slice(&digest[..12]);
    Id(id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn random_ids_differ() {
        let ids: HashSet<Id> = (0..10_000).map(|_| random()).collect();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn derived_id_depends_on_the_text_and_each_part() {
        let id =
            |text: &str, parts: &[&str]| derived(text.as_bytes(), parts.iter().map(|part| part.as_bytes()));
        assert_eq!(id("a", &["b", "c"]), id("a", &["b", "c"]));
        let ids = [id("a", &["b", "c"]), id("a", &["bc"]), id("a", &["b"]), id("ab", &["c"]), id("a", &[])];
        assert_eq!(ids.into_iter().collect::<HashSet<_>>().len(), ids.len());
    }
}

//! A key as machine words, which can be hashed and compared without a heap copy.

use sha2::{Digest, Sha256};

/// Longer keys are compared by 192 bits of their SHA-256.
const LONGEST: usize = 24;
pub(super) const WORDS: usize = LONGEST / 8;

/// The length field of a hashed key.
const HASHED: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedKey {
    pub(super) words: [u64; WORDS],
    /// Distinguishes keys that differ only in trailing zeros.
    pub(super) len: u8,
}

impl PackedKey {
    #[inline]
    pub(super) fn of(key: &[u8]) -> Self {
        if key.len() > LONGEST {
            return Self { words: words(&Sha256::digest(key)[..LONGEST]), len: HASHED };
        }
        Self { words: words(key), len: key.len() as u8 }
    }

    /// Returns the hash for table look-ups. A client gains nothing from finding two keys with the same hash:
    /// they are compared by their bytes, and a crowded part of the table only means no lease.
    #[inline]
    pub(super) fn hash(self, seed: [u64; 2]) -> u64 {
        let hash =
            self.words.iter().fold(seed[0] ^ u64::from(self.len), |hash, word| fold(hash ^ word, seed[1]));
        fold(hash, 0x9e37_79b9_7f4a_7c15)
    }
}

#[inline]
fn words(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*bytes);
    }
    if let Some(word) = words.get_mut(whole.len()) {
        *word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::PackedKey;

    #[test]
    fn different_keys_have_different_words_and_hashes() {
        let long = [vec![b'a'; 24], vec![b'a'; 25], vec![b'a'; 50], vec![0; 24], vec![0; 23]];
        let short = [&b""[..], b"\0", b"\0\0", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"abcdefghi"];
        let all: Vec<_> = long.iter().map(Vec::as_slice).chain(short).map(PackedKey::of).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one && other.hash([1, 3]) != one.hash([1, 3])));
        }
    }
}

//! A keyed hash of a check's target, computed once and shared by all look-ups.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher, RandomState};

/// Equal for equal values. Different values rarely have the same hash, so a look-up that finds one also
/// compares the full values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyedHash(pub(crate) u64);

/// Computes hashes with a secret of this process, so that clients cannot choose keys that collide.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHasher(DefaultHasher);

impl Default for KeyedHasher {
    fn default() -> Self {
        Self(RandomState::new().build_hasher())
    }
}

impl KeyedHasher {
    #[inline]
    pub(crate) fn of(&self, text: &str) -> KeyedHash {
        let mut hasher = self.0.clone();
        hasher.write(text.as_bytes());
        KeyedHash(hasher.finish())
    }

    /// Returns the hasher of texts that follow this one, which is then hashed once for all of them.
    pub(crate) fn after(mut self, first: &str) -> Self {
        self.0.write(first.as_bytes());
        self
    }
}

impl KeyedHash {
    /// Returns the hash combined with a number that no client chooses.
    pub(crate) fn with(self, number: u64) -> Self {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        Self((self.0.rotate_left(23) ^ number).wrapping_mul(ODD))
    }
}

/// Writes the hash unchanged.
impl Hash for KeyedHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

/// The hasher for maps whose keys are hashes already.
pub(crate) type IdentityHasher = BuildHasherDefault<IdentityHash>;

#[derive(Clone, Debug, Default)]
pub(crate) struct IdentityHash(u64);

impl Hasher for IdentityHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

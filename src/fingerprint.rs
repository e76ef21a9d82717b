//! A keyed hash of what is asked, computed once for all that look it up.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

/// Equal for what is equal, and for hardly anything else: who finds one
/// compares in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) u64);

/// Makes them, under a secret of this process's: nobody can choose keys that
/// meet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fingerprints(RandomState);

impl Fingerprints {
    pub(crate) fn of(&self, what: impl Hash) -> Fingerprint {
        Fingerprint(self.0.hash_one(what))
    }
}

impl Fingerprint {
    /// That of this together with something that nobody else chooses.
    pub(crate) fn with(self, number: u64) -> Self {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        Self((self.0.rotate_left(23) ^ number).wrapping_mul(ODD))
    }
}

/// Hashed as it is.
impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

/// For maps by fingerprints, which are hashes already.
pub(crate) type AsTheyAre = BuildHasherDefault<AsItIs>;

#[derive(Clone, Debug, Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
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

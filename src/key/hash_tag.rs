//! The slot of a key in a Redis Cluster: one of 48, spread evenly.
//!
//! A script's keys must share a slot. If each key had a slot of its own, no keys could be sent together. The
//! `{tag}` before the key determines the slot.

/// The number of hash tags.
pub(crate) const HASH_TAGS: usize = 48;

/// The hash tags: the slot of the `i`-th is (i + 1/2) / 48 of all slots, within 20. Part of the layout.
#[rustfmt::skip]
const TAGS: [&str; HASH_TAGS] = [
    "cr", "18", "sv", "g2", "5x", "og", "1t", "dj", "jy", "fl", "3r", "vh",
    "6x", "d2", "bt", "28", "pv", "f4", "1u", "uh", "ey", "3f", "iy", "gj",
    "bj", "ly", "6f", "5r", "h9", "4u", "c4", "uv", "ka", "gt", "q6", "3x",
    "k9", "9s", "cl", "oy", "5f", "4t", "r6", "dt", "zc", "vv", "ha", "fr",
];

/// One of the hash tags. With a single Redis all keys have the first, which is not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HashTag(u8);

impl HashTag {
    /// Chooses by a hash of the key alone, which is the same in every process and version: all gates of one
    /// key share a hash tag.
    pub(super) fn of(hash: u64) -> Self {
        Self((hash % HASH_TAGS as u64) as u8)
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..HASH_TAGS as u8).map(Self)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the hash tag with this [`index`](Self::index), or `None` if there is none.
    pub(crate) fn of_index(index: u8) -> Option<Self> {
        (usize::from(index) < HASH_TAGS).then_some(Self(index))
    }

    /// Parses the text between the braces of a Redis key. Returns `None` if it is no hash tag of this layout.
    #[cfg(feature = "admin")]
    pub(crate) fn parse(tag: &str) -> Option<Self> {
        TAGS.iter().position(|&other| other == tag).map(|index| Self(index as u8))
    }

    pub(super) fn tag(self) -> &'static str {
        TAGS[self.index()]
    }
}

/// Hashes with 64-bit FNV-1a and folds the halves: the low bits alone would depend only on the low bits of
/// each byte.
pub(super) fn hash(key: &[u8]) -> u64 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the slot as Redis does: CRC-16/XMODEM.
    fn slot(tag: &str) -> i32 {
        let crc = tag.bytes().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
                0 => crc << 1,
                _ => (crc << 1) ^ 0x1021,
            })
        });
        i32::from(crc % 16_384)
    }

    #[test]
    fn the_slots_of_the_tags_are_evenly_spaced() {
        assert_eq!(slot("123456789"), 0x31c3);
        for (index, tag) in (0..).zip(TAGS) {
            let even = (2 * index + 1) * 16_384 / 96;
            assert!((slot(tag) - even).abs() <= 20, "{tag}: slot {} instead of {even}", slot(tag));
        }
    }

    #[test]
    fn any_even_division_of_the_slots_gives_each_node_its_share_of_the_tags() {
        for nodes in 1..=24 {
            let mut tags = vec![0; nodes];
            TAGS.iter().for_each(|tag| tags[slot(tag) as usize * nodes / 16_384] += 1);
            let fair = HASH_TAGS / nodes..=HASH_TAGS.div_ceil(nodes);
            assert!(tags.iter().all(|tags| fair.contains(tags)), "{nodes} nodes: {tags:?}");
        }
    }

    #[test]
    fn keys_that_are_counted_up_are_spread_evenly() {
        for prefix in ["", "user:", "10.0.0."] {
            let mut keys = [0; HASH_TAGS];
            (0..48_000).for_each(|n| keys[HashTag::of(hash(format!("{prefix}{n}").as_bytes())).index()] += 1);
            assert!(keys.iter().all(|keys| (850..=1_150).contains(keys)), "{prefix}: {keys:?}");
        }
    }

    #[test]
    fn a_key_never_moves() {
        let tag = |key: &[u8]| HashTag::of(hash(key)).tag();
        assert_eq!(["", "user:42", "10.0.0.1"].map(|key| tag(key.as_bytes())), ["gt", "cl", "pv"]);
    }
}

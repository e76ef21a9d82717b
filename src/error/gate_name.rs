//! A gate's name, stored inline: every decision carries one, and all threads would contend for a shared
//! reference count.

use std::fmt;
use std::ops::Deref;

/// Names are `[a-z0-9_.-]{1,64}`.
const LONGEST: usize = 64;

/// At most 64 bytes of text, which is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateName {
    len: u8,
    bytes: [u8; LONGEST],
}

impl GateName {
    /// Returns `None` if the name is longer than 64 bytes.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self { len: name.len() as u8, bytes })
    }
}

#[cfg(feature = "metrics")]
impl GateName {
    /// Returns the bytes of the name as words, for comparison.
    #[inline]
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let (words, _) = self.bytes.as_chunks::<8>();
        words.iter().take(usize::from(self.len).div_ceil(8)).map(|word| u64::from_le_bytes(*word))
    }
}

impl Deref for GateName {
    type Target = str;

    fn deref(&self) -> &str {
        // Always valid: made from a `str`.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for GateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for GateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for GateName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::GateName;

    #[test]
    fn a_name_of_1_to_64_bytes_is_kept() {
        for length in [1, 63, 64] {
            let name = "a".repeat(length);
            assert_eq!(&*GateName::new(&name).unwrap(), name);
        }
        assert!(GateName::new(&"a".repeat(65)).is_none());
        assert_eq!(format!("{:?}", GateName::new("login").unwrap()), "\"login\"");
        assert_ne!(GateName::new("a"), GateName::new("ab"));
    }
}

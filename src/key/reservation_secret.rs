//! The signatures of reservation tokens.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::Error;

/// The bytes of a signature: the first half of an HMAC-SHA-256.
pub(crate) const SIGNATURE_BYTES: usize = 16;

/// The secrets of a namespace. The first one signs; all verify.
#[derive(Default)]
pub(crate) struct Secrets {
    namespace: String,
    secrets: Vec<Vec<u8>>,
}

impl Secrets {
    /// Returns an error if a secret is too short.
    pub(crate) fn new(namespace: &str, secrets: Vec<Vec<u8>>) -> Result<Self, Error> {
        match secrets.iter().any(|secret| secret.len() < 16) {
            true => Err(Error::config("`reservation_secret` is shorter than 16 bytes: use 32 random ones")),
            false => Ok(Self { namespace: namespace.to_owned(), secrets }),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// Returns the signature, or `None` without a secret.
    pub(crate) fn sign(&self, content: &[u8]) -> Option<[u8; SIGNATURE_BYTES]> {
        let digest = self.mac(self.secrets.first()?, content).finalize().into_bytes();
        digest.first_chunk().copied()
    }

    /// Compares in constant time.
    pub(crate) fn is_signature_of(&self, content: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        let verifies = |secret| self.mac(secret, content).verify_truncated_left(signature).is_ok();
        self.secrets.iter().any(|secret| verifies(secret))
    }

    /// The namespace is signed too: another one with the same secret does not accept the token.
    fn mac(&self, secret: &[u8], content: &[u8]) -> Hmac<Sha256> {
        #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length");
        mac.update(b"tidegate reservation token\0");
        mac.update(self.namespace.as_bytes());
        // No namespace contains a zero byte.
        mac.update(b"\0");
        mac.update(content);
        mac
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.secrets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(namespace: &str, secrets: &[u8]) -> Secrets {
        Secrets::new(namespace, secrets.iter().map(|&byte| vec![byte; 32]).collect()).unwrap()
    }

    #[test]
    fn signature_is_accepted_only_with_the_secret_the_namespace_and_the_content() {
        let signature = secrets("shop", &[1]).sign(b"content").unwrap();
        let accepts = |by: &Secrets, content: &[u8]| by.is_signature_of(content, &signature);
        assert!(accepts(&secrets("shop", &[1]), b"content"));
        assert!(accepts(&secrets("shop", &[2, 1]), b"content"), "an older secret verifies");
        assert!(!accepts(&secrets("shop", &[2]), b"content"));
        assert!(!accepts(&secrets("shop", &[]), b"content"));
        assert!(!accepts(&secrets("other", &[1]), b"content"));
        assert!(!accepts(&secrets("shop", &[1]), b"changed"));
        for bit in 0..8 * SIGNATURE_BYTES {
            let mut changed = signature;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!secrets("shop", &[1]).is_signature_of(b"content", &changed), "bit {bit}");
        }
    }

    #[test]
    fn newest_secret_signs() {
        assert_eq!(secrets("shop", &[2, 1]).sign(b"content"), secrets("shop", &[2]).sign(b"content"));
        assert_eq!(secrets("shop", &[]).sign(b"content"), None);
    }

    #[test]
    fn short_secret_is_an_error() {
        let error = Secrets::new("shop", vec![vec![1; 15]]).unwrap_err();
        assert!(error.is_config() && error.to_string().contains("16 bytes"), "{error}");
        assert_eq!(format!("{:?}", secrets("shop", &[1])), "Secrets(1)");
    }
}

//! Whom a request is counted for.

use std::sync::Arc;

use http::request::Parts;

/// Whom a request is counted for.
#[derive(Clone)]
pub struct Key(Arc<Of>);

type Of = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

impl Key {
    /// A header's value.
    #[must_use]
    pub fn header(name: &'static str) -> Self {
        Self::from_fn(move |parts| Some(parts.headers.get(name)?.as_bytes().to_vec()))
    }

    /// The same for every request.
    #[must_use]
    pub fn constant(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref().to_vec();
        Self::from_fn(move |_| Some(bytes.clone()))
    }

    /// What a function says of a request.
    #[must_use]
    pub fn from_fn(of: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(of))
    }

    pub(crate) fn of(&self, parts: &Parts) -> Option<Vec<u8>> {
        (self.0)(parts)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

//! The tokens that show that a form comes from a page of this port.

use super::secret::{is_same_secret, secret};

/// The secret in the forms of a session. A page of another site cannot read it.
#[derive(Clone)]
pub(crate) struct CsrfToken(String);

impl CsrfToken {
    pub(super) fn random() -> Self {
        Self(secret())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn is(&self, given: &str) -> bool {
        is_same_secret(self.0.as_bytes(), given.as_bytes())
    }
}

impl std::fmt::Debug for CsrfToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CsrfToken")
    }
}

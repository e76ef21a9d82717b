//! The tokens that show that a form comes from a page of this port.

use super::{Identity, is_same_secret, random};

/// The secret in the forms of a session. A page of another site cannot read it.
#[derive(Clone)]
pub(crate) struct CsrfToken(String);

impl CsrfToken {
    pub(super) fn random() -> Self {
        Self(random::secret())
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

/// Returns the value of the hidden field `csrf`, which each form that is read by [`Form`](super::Form) needs. Empty for
/// a request with a bearer token, which needs none.
pub(crate) fn csrf_token(identity: &Identity) -> &str {
    identity.csrf.as_ref().map_or("", |CsrfToken(text)| text)
}

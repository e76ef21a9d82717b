//! Senders of requests, and their roles.

use super::sessions::{is_same_secret, secret};
use crate::connections::Client;

/// What an identity may do on the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads all pages, metrics and settings.
    Viewer,
    /// Also changes limits: blocks, resets, overrides and switches.
    Operator,
}

impl Role {
    /// Returns the name of the role: `viewer` or `operator`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator].into_iter().find(|role| role.as_str() == name)
    }
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The name of its token; `local` if the port has no tokens.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// `None` for a request with a bearer token: no page of another site can make a browser send one.
    pub(super) csrf: Option<CsrfToken>,
    /// Whether it has a session, which it can end.
    pub has_session: bool,
}

impl Identity {
    /// Creates the identity of a bearer token.
    #[must_use]
    pub const fn of_bearer(name: String, role: Role) -> Self {
        Self { name, role, csrf: None, has_session: false }
    }

    /// Returns the value of the hidden field `csrf`, which each form that is read by [`Form`](super::Form) needs. `None`
    /// for a request with a bearer token, which needs none.
    #[must_use]
    pub fn csrf(&self) -> Option<&str> {
        self.csrf.as_ref().map(CsrfToken::as_str)
    }
}

/// The sender of a request, among the extensions of the request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) identity: Option<Identity>,
}

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

//! Senders of requests, and their roles.

use super::csrf::CsrfToken;

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
pub(crate) struct Identity {
    /// The name of its token; `local` if the port has no tokens.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// `None` for a request with a bearer token: no page of another site can make a browser send one.
    pub(super) csrf: Option<CsrfToken>,
    /// Whether it has a session, which it can end.
    pub(crate) has_session: bool,
}

#[cfg(test)]
impl Identity {
    /// An identity of a test, as with a bearer token.
    pub(crate) fn named(name: &str, role: Role) -> Self {
        Self { name: name.to_owned(), role, csrf: None, has_session: false }
    }
}

/// Returns the value of the hidden field `csrf`, which each form that is read by [`Form`](super::Form) needs. Empty for
/// a request with a bearer token, which needs none.
pub(crate) fn csrf_token(identity: &Identity) -> &str {
    identity.csrf.as_ref().map_or("", CsrfToken::as_str)
}

//! Who may do what on the admin port.
//!
//! A handler states its right by an argument: [`Viewer`] reads, [`Operator`] changes, [`Form`] is a form whose CSRF
//! token is right. [`guard`] runs before all handlers: it finds the identity once, and rejects requests of foreign
//! pages.

mod attempts;
mod csrf;
mod extract;
mod guard;
mod login;
mod origin;
mod random;
mod rejection;
mod sessions;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use subtle::ConstantTimeEq;
use tidegate::ManualClock;

use self::attempts::Attempts;
use self::csrf::CsrfToken;
pub(crate) use self::csrf::csrf_token;
pub(crate) use self::extract::{Change, Form, Operator, Viewer};
pub(crate) use self::guard::guard;
pub(crate) use self::login::routes;
pub(super) use self::random::hex;
use self::sessions::{Session, Sessions};
pub use self::tokens::{AdminTokens, AdminTokensError};

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

    fn of_name(name: &str) -> Option<Self> {
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
    csrf: Option<CsrfToken>,
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

/// Who may do what. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Access(Arc<AccessInner>);

#[derive(Debug)]
struct AccessInner {
    settings: AccessSettings,
    sessions: Sessions,
    attempts: Attempts,
    /// The CSRF token of forms without a session, for this process.
    csrf: CsrfToken,
}

/// The settings of [`Access`].
#[derive(Clone, Debug)]
pub(crate) struct AccessSettings {
    /// `None`: each client is `local` and has `open_role`.
    pub(crate) tokens: Option<AdminTokens>,
    pub(crate) open_role: Role,
    /// The names by which browsers reach the port, beside addresses and `localhost`. In lower case.
    pub(crate) hosts: Vec<String>,
    /// Whether browsers reach the port by TLS, which a proxy ends.
    pub(crate) is_behind_tls: bool,
    pub(crate) clock: Option<ManualClock>,
}

impl Access {
    pub(crate) fn new(settings: AccessSettings) -> Self {
        let (sessions, attempts) =
            (Sessions::new(settings.clock.clone()), Attempts::new(settings.clock.clone()));
        Self(Arc::new(AccessInner { settings, sessions, attempts, csrf: CsrfToken::random() }))
    }

    fn settings(&self) -> &AccessSettings {
        &self.0.settings
    }

    /// Returns the identity of all clients, if the port has no tokens.
    fn open_identity(&self) -> Option<Identity> {
        let AccessSettings { tokens, open_role, .. } = self.settings();
        tokens.is_none().then(|| Identity {
            name: "local".to_owned(),
            role: *open_role,
            csrf: Some(self.0.csrf.clone()),
            has_session: false,
        })
    }

    /// Returns the identity that a token belongs to. A wrong token counts as an attempt of this client.
    ///
    /// # Errors
    ///
    /// The time until the client may try again, if it has failed too often. Then no token is compared.
    async fn verify(
        &self,
        client: &attempts::Client,
        token: &[u8],
    ) -> Result<Option<(String, Role)>, Duration> {
        let attempt = self.0.attempts.begin(client).await?;
        let found = self.settings().tokens.as_ref().and_then(|tokens| tokens.find(token));
        if found.is_some() {
            attempt.succeeded().await;
        }
        Ok(found)
    }

    fn session(&self, id: &str) -> Option<Identity> {
        let Session { name, role, csrf, .. } = self.0.sessions.find(id)?;
        Some(Identity { name, role, csrf: Some(csrf), has_session: true })
    }
}

/// Compares secrets in a time that does not depend on their content.
fn is_same_secret(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

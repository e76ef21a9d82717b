//! Finds the identity that belongs to a token or a session.

use std::sync::Arc;
use std::time::Duration;

use tidegate::ManualClock;

use super::attempts::{Attempts, Client};
use super::csrf::CsrfToken;
use super::identity::{Identity, Role};
use super::sessions::{Session, Sessions};
use super::tokens::AdminTokens;

/// The rights of clients. Clones share it.
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

    pub(super) fn settings(&self) -> &AccessSettings {
        &self.0.settings
    }

    /// Returns the identity of all clients, if the port has no tokens.
    pub(super) fn open_identity(&self) -> Option<Identity> {
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
    pub(super) async fn verify(
        &self,
        client: &Client,
        token: &[u8],
    ) -> Result<Option<(String, Role)>, Duration> {
        let attempt = self.0.attempts.begin(client).await?;
        let found = self.settings().tokens.as_ref().and_then(|tokens| tokens.find(token));
        if found.is_some() {
            attempt.succeeded().await;
        }
        Ok(found)
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    pub(super) fn session(&self, id: &str) -> Option<Identity> {
        let Session { name, role, csrf, .. } = self.0.sessions.find(id)?;
        Some(Identity { name, role, csrf: Some(csrf), has_session: true })
    }
}

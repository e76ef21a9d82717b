//! Finds the identity that belongs to a token or a session.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Limiter, ManualClock};

use super::attempts::{Attempts, RejectedLogins};
use super::identity::{CsrfToken, Identity, Role};
use super::sessions::{Session, Sessions};
use super::tokens::AdminTokens;
use crate::connections::Client;
use crate::metrics::ServiceMetrics;

/// The rights of clients. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Access(Arc<AccessInner>);

#[derive(Debug)]
struct AccessInner {
    settings: AccessSettings,
    sessions: Sessions,
    attempts: Attempts,
    rejected_logins: RejectedLogins,
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
    /// Rejected tokens are reported to this limiter, and counted in these metrics.
    pub(crate) fn new(settings: AccessSettings, limiter: Limiter, metrics: Option<&ServiceMetrics>) -> Self {
        Self(Arc::new(AccessInner {
            sessions: Sessions::new(settings.clock.clone()),
            attempts: Attempts::new(settings.clock.clone()),
            rejected_logins: RejectedLogins::new(limiter, metrics),
            csrf: CsrfToken::random(),
            settings,
        }))
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

    /// Returns the identity that a token belongs to. A wrong token counts as a failure of this client, and is reported.
    ///
    /// A right token is accepted whatever others have sent from the same address: a token is long and random, so nobody
    /// guesses it, and a limit would only let one client of an address lock out the others.
    ///
    /// # Errors
    ///
    /// The time until the next attempt, if the token is wrong and the client has failed too often.
    pub(super) async fn verify(
        &self,
        client: Client,
        token: &[u8],
    ) -> Result<Option<(String, Role)>, Duration> {
        if let Some(found) = self.settings().tokens.as_ref().and_then(|tokens| tokens.find(token)) {
            return Ok(Some(found));
        }
        match self.0.attempts.count_failure(client).await {
            Ok(()) => self.0.rejected_logins.wrong_token(client),
            Err(wait) => {
                self.0.rejected_logins.too_many_attempts(client);
                return Err(wait);
            }
        }
        Ok(None)
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    /// A poll is not a use of the session.
    pub(super) fn session(&self, id: &str, is_poll: bool) -> Option<Identity> {
        let Session { name, role, csrf, .. } = self.0.sessions.find(id, is_poll)?;
        Some(Identity { name, role, csrf: Some(csrf), has_session: true })
    }
}

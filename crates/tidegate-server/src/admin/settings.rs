//! The settings of the admin port.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use tidegate::ManualClock;

use super::access::{AccessSettings, AdminTokens, Role};
use super::pages::Pages;
use crate::origin;
use crate::server_error::ServerError;

/// The settings of the admin port, for [`Server::admin`](crate::Server::admin).
///
/// ```no_run
/// use tidegate_server::{Admin, AdminTokens};
///
/// let tokens = AdminTokens::load("/etc/tidegate/admin-tokens")?;
/// let admin = Admin::new("10.0.0.1:8082".parse()?).tokens(tokens).host("limits.example").behind_tls(true);
/// # let _ = admin; Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Admin {
    pub(crate) address: SocketAddr,
    access: AccessSettings,
    pub(super) pages: Option<Arc<dyn Pages>>,
    pub(super) has_public_metrics: bool,
    /// The settings of the program, for `/config`.
    pub(super) shown_settings: Option<Value>,
}

impl Admin {
    /// Opens the port at this address; port 0 means any free port. Without [tokens](Self::tokens), the address must be
    /// of the loopback interface, and each client may read.
    pub const fn new(address: SocketAddr) -> Self {
        let access = AccessSettings {
            tokens: None,
            open_role: Role::Viewer,
            hosts: Vec::new(),
            is_behind_tls: false,
            clock: None,
        };
        Self { address, access, pages: None, has_public_metrics: false, shown_settings: None }
    }

    /// Admits only clients with one of these tokens.
    ///
    /// Default: none.
    pub fn tokens(mut self, tokens: AdminTokens) -> Self {
        self.access.tokens = Some(tokens);
        self
    }

    /// Sets what each client may do on a port without tokens. As an operator, each process and user of this machine can
    /// change all limits.
    ///
    /// Default: [`Role::Viewer`].
    pub const fn open_role(mut self, role: Role) -> Self {
        self.access.open_role = role;
        self
    }

    /// Adds a name by which browsers reach the port. Others are rejected, except addresses and `localhost`: otherwise a
    /// page of another site could give the port its own name, and so read and change everything.
    ///
    /// Default: none.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.access.hosts.push(name.into().to_ascii_lowercase());
        self
    }

    /// Sets whether browsers reach the port by TLS, which a proxy ends. Session cookies are then sent by TLS only.
    ///
    /// Default: false.
    pub const fn behind_tls(mut self, is_behind: bool) -> Self {
        self.access.is_behind_tls = is_behind;
        self
    }

    /// Sets whether `/metrics` needs no token, as if each client were a viewer there.
    ///
    /// Default: false.
    pub const fn public_metrics(mut self, is_public: bool) -> Self {
        self.has_public_metrics = is_public;
        self
    }

    /// Adds pages for browsers, and the login to them: `Console` of the crate `tidegate-console`.
    ///
    /// Default: none. The port then has `/metrics` and `/config`.
    pub fn pages(mut self, pages: impl Pages + 'static) -> Self {
        self.pages = Some(Arc::new(pages));
        self
    }

    /// Shows these settings of the program at `/config`. They must contain no secrets.
    ///
    /// Default: none.
    pub fn shown_settings(mut self, settings: Value) -> Self {
        self.shown_settings = Some(settings);
        self
    }

    /// Uses this clock for sessions and for attempts, in tests.
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.access.clock = Some(clock);
        self
    }

    /// Checks the settings, without opening the port: each client that reaches it must be on this machine, or need a
    /// token. [`Server::bind`](crate::Server::bind) checks the same.
    ///
    /// # Errors
    ///
    /// [`ServerError::AdminNeedsTokens`] if the port would be open to other machines without tokens;
    /// [`ServerError::AdminHost`] if a [name](Self::host) can never be the host of a request.
    pub fn validate(&self) -> Result<(), ServerError> {
        if let Some(name) = self.access.hosts.iter().find(|name| !origin::can_be_host(name)) {
            return Err(ServerError::AdminHost(name.clone()));
        }
        match self.access.tokens.is_some() || self.address.ip().to_canonical().is_loopback() {
            true => Ok(()),
            false => Err(ServerError::AdminNeedsTokens(self.address)),
        }
    }

    pub(super) fn access(&self) -> AccessSettings {
        self.access.clone()
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin")
            .field("address", &self.address)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

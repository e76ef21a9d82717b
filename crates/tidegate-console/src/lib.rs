#![cfg_attr(docsrs, feature(doc_cfg))]
// The first definition of a label applies: here, links of the README lead to items.
//! [tidegate-server]: tidegate_server
//! [console.md]: crate::Console
#![doc = include_str!("../README.md")]

mod api;
mod audit;
mod changes;
mod pages;

use std::sync::Arc;

use axum::Router;
use tidegate::Error;
use tidegate::admin::{AuditEntry, Inspector};
use tidegate_server::RateLimitService;
use tidegate_server::pages::{ChangeTracker, Pages, Problem};

pub use self::audit::audit_json;
use self::audit::{AuditLog, OnAudit};
use self::changes::AuditedChanges;

/// The web console and its JSON API, for [`Admin::pages`](tidegate_server::Admin::pages).
///
/// ```no_run
/// use tidegate_console::Console;
/// use tidegate_server::{Admin, AdminTokens};
///
/// let tokens = AdminTokens::load("/etc/tidegate/admin-tokens")?;
/// let admin = Admin::new("10.0.0.1:8082".parse()?).tokens(tokens).pages(Console::new());
/// # let _ = admin; Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Console {
    on_audit: Option<OnAudit>,
}

impl Console {
    /// Creates the console.
    pub const fn new() -> Self {
        Self { on_audit: None }
    }

    /// Calls this function with each change of an operator, beside the event of `tracing`: for a program without a
    /// subscriber. It must not block. The result is the error if Redis has not stored the entry: then the function has the
    /// only one.
    ///
    /// Default: none.
    pub fn on_audit(
        mut self,
        on_audit: impl Fn(&AuditEntry, Result<(), &Error>) + Send + Sync + 'static,
    ) -> Self {
        self.on_audit = Some(Arc::new(on_audit));
        self
    }
}

impl Pages for Console {
    fn routes(&self, service: &RateLimitService, tracker: &ChangeTracker) -> Router {
        let inspector = Inspector::new(service.rules().limiter()).ok();
        let log = AuditLog::new(inspector.clone(), self.on_audit.clone());
        let changes = AuditedChanges::new(service.clone(), tracker.clone(), log);
        api::routes(changes.clone()).merge(pages::routes(changes, inspector))
    }

    fn problem(&self, problem: &Problem) -> String {
        pages::error_page(problem)
    }

    fn login(&self, next: &str, error: Option<&str>) -> String {
        pages::login_page(next, error)
    }
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").finish_non_exhaustive()
    }
}

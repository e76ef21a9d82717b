//! The state of the handlers.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::Error;
use tidegate::admin::{ChangedGate, Changes, Inspector};

use super::access::Access;
use super::audit::AuditLog;
use super::change::ChangeTracker;
use super::settings::Admin;
use crate::console::Console;
use crate::metrics::ServiceMetrics;
use crate::service::RateLimitService;

/// The addresses that the ports have, also if their settings left the choice to the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listening {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// The state of the handlers of the admin port. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    /// The active rules, and their decisions.
    pub(crate) service: RateLimitService,
    pub(crate) audit: AuditLog,
    pub(super) changes: Changes,
    pub(super) tracker: ChangeTracker,
    pub(crate) access: Access,
    pub(crate) metrics: Option<ServiceMetrics>,
    pub(crate) settings: Arc<Admin>,
    pub(super) listening: Listening,
    /// The readings of the console.
    pub(crate) console: Console,
}

impl AdminState {
    pub(crate) fn new(
        service: RateLimitService,
        admin: &Admin,
        metrics: Option<ServiceMetrics>,
        changes: Changes,
        tracker: ChangeTracker,
        listening: Listening,
    ) -> Self {
        let limiter = service.rules().limiter().clone();
        let inspector = Inspector::new(&limiter).ok();
        let audit = AuditLog::new(inspector.clone(), admin.on_audit_event());
        let settings = Arc::new(admin.clone());
        let console = Console::new(service.clone(), inspector.clone());
        let access = Access::new(admin.access(), limiter.clone(), metrics.as_ref());
        Self { service, audit, changes, tracker, access, metrics, settings, listening, console }
    }

    /// Returns the gate that an operator names: by its own name, or by the path or name of an active rule.
    ///
    /// # Errors
    ///
    /// If several rules have the name.
    pub(crate) fn changed_gate(&self, name: &str) -> Result<ChangedGate, Error> {
        let rules = self.service.rules();
        let named = rules.rules().named(name).into_iter();
        ChangedGate::named(name, named.map(|rule| (rule.gate_name(), rule.quota())))
    }
}

//! The state of the handlers.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::admin::Inspector;
use tidegate::{Limiter, Quota};
use tidegate_rules::Rule;

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
    pub(crate) limiter: Limiter,
    /// `None` if the limiter has no Redis.
    pub(crate) inspector: Option<Inspector>,
    pub(crate) audit: AuditLog,
    pub(super) changes: ChangeTracker,
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
        changes: ChangeTracker,
        listening: Listening,
    ) -> Self {
        let limiter = service.rules().limiter().clone();
        let inspector = Inspector::new(&limiter).ok();
        let audit = AuditLog::new(inspector.clone(), admin.on_audit_event());
        let settings = Arc::new(admin.clone());
        let console = Console::new(service.clone(), inspector.clone());
        let access = Access::new(admin.access(), limiter.clone(), metrics.as_ref());
        Self { service, limiter, inspector, audit, changes, access, metrics, settings, listening, console }
    }

    /// Returns whether an active rule has this gate.
    pub(crate) fn has_rule(&self, gate: &str) -> bool {
        self.service.rules().rules().iter().any(|rule| rule.gate_name() == gate)
    }

    /// Returns the quota of the rule with this gate; `None` if there is no such rule, or if it has no quota.
    pub(crate) fn rule_quota(&self, gate: &str) -> Option<Quota> {
        let rules = self.service.rules();
        let rule = rules.rules().iter().find(|rule| rule.gate_name() == gate);
        rule.and_then(Rule::quota)
    }
}

//! What the handlers of the admin port work with.

use tidegate::Limiter;
use tidegate::admin::Inspector;

use super::access::Access;
use super::audit::AuditLog;
use super::settings::Admin;
use crate::console::Console;
use crate::metrics::ServiceMetrics;
use crate::service::RateLimitService;

/// What the handlers of the admin port work with. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    /// The rules in force, and their decisions.
    pub(crate) service: RateLimitService,
    pub(crate) limiter: Limiter,
    /// `None` if the limiter has no Redis.
    pub(crate) inspector: Option<Inspector>,
    pub(crate) audit: AuditLog,
    pub(crate) access: Access,
    pub(crate) metrics: Option<ServiceMetrics>,
    /// The readings of the console.
    pub(crate) console: Console,
}

impl AdminState {
    pub(crate) fn new(service: RateLimitService, admin: &Admin, metrics: Option<ServiceMetrics>) -> Self {
        let limiter = service.rules().limiter().clone();
        let inspector = Inspector::new(&limiter).ok();
        let audit = AuditLog::new();
        let console = Console::new(service.clone(), inspector.clone());
        Self { service, limiter, inspector, audit, access: Access::new(admin.access()), metrics, console }
    }
}

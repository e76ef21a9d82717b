//! The state of the handlers.

use std::net::SocketAddr;
use std::sync::Arc;

use super::settings::Admin;
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
    pub(crate) metrics: Option<ServiceMetrics>,
    pub(crate) settings: Arc<Admin>,
    pub(crate) listening: Listening,
}

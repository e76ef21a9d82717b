//! What the handlers of the HTTP port share.

use std::sync::Arc;

use crate::body::BodyMemory;
use crate::permits::PermitTable;
use crate::readiness::Readiness;
use crate::service::RateLimitService;

#[derive(Clone, Debug)]
pub(crate) struct HttpState {
    pub(crate) service: RateLimitService,
    pub(crate) readiness: Readiness,
    pub(crate) permits: Arc<PermitTable>,
    pub(crate) max_message_bytes: usize,
    pub(crate) body_memory: Arc<BodyMemory>,
}

//! Whether the server can take requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::service::RateLimitService;

/// The time for which a probe retries Redis: less than the usual timeout of a probe, a second.
const PATIENCE: Duration = Duration::from_millis(500);

/// The readiness of a server, for its `/readyz`. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Readiness {
    service: RateLimitService,
    needs_redis: bool,
    is_stopping: Arc<AtomicBool>,
}

impl Readiness {
    pub(crate) fn new(service: RateLimitService, needs_redis: bool) -> Self {
        Self { service, needs_redis, is_stopping: Arc::default() }
    }

    /// Marks the server as stopping, for good.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Returns why the server is not ready. Rules are loaded and the gRPC port is open before this is first asked.
    pub(crate) async fn check(&self) -> Result<(), String> {
        if self.is_stopping() {
            return Err("the server is stopping".to_owned());
        }
        if self.needs_redis {
            // The text of the error contains the address of Redis.
            let ready = self.service.rules().limiter().ready_within(PATIENCE).await;
            return ready.map_err(|_| "Redis does not decide, and the failure policy is `error`".to_owned());
        }
        Ok(())
    }
}

//! Whether the server can take requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::service::RateLimitService;

/// The time for which a probe retries Redis: less than the usual timeout of a probe, a second.
const PATIENCE: Duration = Duration::from_millis(500);

/// The readiness of a server, for `/readyz`, `/healthcheck` and the health over gRPC. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Readiness {
    service: RateLimitService,
    /// Whether the server is ready, and whether it is healthy, only while Redis decides.
    needs_redis: NeedsRedis,
    is_stopping: Arc<AtomicBool>,
}

/// What depends on Redis.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NeedsRedis {
    pub(crate) readiness: bool,
    pub(crate) health: bool,
}

impl Readiness {
    pub(crate) fn new(service: RateLimitService, needs_redis: NeedsRedis) -> Self {
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
    pub(crate) async fn check(&self) -> Result<(), &'static str> {
        self.check_with(self.needs_redis.readiness).await
    }

    /// Returns why the server is not healthy.
    pub(crate) async fn check_health(&self) -> Result<(), &'static str> {
        self.check_with(self.needs_redis.health).await
    }

    async fn check_with(&self, needs_redis: bool) -> Result<(), &'static str> {
        if needs_redis {
            // The text of the error contains the address of Redis.
            let ready = self.service.rules().limiter().ready_to_charge(PATIENCE).await;
            ready.map_err(|_| "Redis does not decide")?;
        }
        if self.is_stopping() { Err("the server is stopping") } else { Ok(()) }
    }
}

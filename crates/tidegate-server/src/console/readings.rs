//! What the pages are made from: the rules, the overrides, the figures of the fleet, and this process's own Redis.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tidegate::admin::Inspector;
use tidegate::{Error, Limiter, Override};

use super::catalog::Catalog;
use super::figures::{Figures, NodeLoad};
use super::health::Known;
use super::hour::Hour;
use super::top::{Ranked, Top};
use crate::service::RateLimitService;

/// The message of pages that need Redis.
const IN_MEMORY: &str = "This service counts in its own memory: a fleet shares its figures and keys in Redis";

/// The readings that the pages share. Clones share them.
#[derive(Clone)]
pub(crate) struct Console(Arc<ConsoleInner>);

struct ConsoleInner {
    service: RateLimitService,
    limiter: Limiter,
    redis: Option<OfRedis>,
}

/// What is read from Redis.
struct OfRedis {
    inspector: Inspector,
    figures: Figures,
    top: Top,
}

impl Console {
    /// Makes the console of a service. Without `inspector`, there are only pages on rules.
    pub(crate) fn new(service: RateLimitService, inspector: Option<Inspector>) -> Self {
        let limiter = service.rules().limiter().clone();
        let redis = inspector.map(|inspector| OfRedis {
            figures: Figures::new(inspector.clone()),
            top: Top::new(inspector.clone()),
            inspector,
        });
        Self(Arc::new(ConsoleInner { service, limiter, redis }))
    }

    pub(super) fn service(&self) -> &RateLimitService {
        &self.0.service
    }

    pub(super) fn namespace(&self) -> &str {
        self.0.redis.as_ref().map_or("in memory", |redis| redis.inspector.namespace())
    }

    fn redis(&self) -> Result<&OfRedis, String> {
        self.0.redis.as_ref().ok_or_else(|| format!("{IN_MEMORY}."))
    }

    pub(super) fn inspector(&self) -> Result<&Inspector, String> {
        self.redis().map(|redis| &redis.inspector)
    }

    /// Returns the figures of the last hour, or why there are none.
    pub(super) async fn hour(&self) -> Result<Arc<Hour>, String> {
        let hour = self.redis()?.figures.hour().await;
        hour.map_err(|error| format!("The figures of the fleet cannot be read: {error}"))
    }

    /// Returns the load of each server, or why it is not known.
    pub(super) async fn load(&self) -> Result<Vec<NodeLoad>, String> {
        self.redis()?.figures.load().await.map_err(|error| {
            format!("The load of Redis cannot be read: {error}. The Redis user of this process needs the right +info.")
        })
    }

    pub(super) async fn overrides(&self) -> Result<Vec<Override>, Error> {
        self.0.limiter.control().overrides().await
    }

    /// Reads the next part of the keys of a gate, or of all.
    pub(super) async fn top(&self, gate: Option<&str>, catalog: &Catalog) -> Result<Ranked, String> {
        let limits: HashMap<String, u64> = catalog.limits().collect();
        let ranked = self.redis()?.top.read(gate, limits).await;
        ranked.map_err(|error| format!("The keys cannot be read: {error}"))
    }

    /// Returns by what the entries of the runbook are decided. The error of Redis is that of a call.
    pub(super) fn known<'k>(
        &self,
        hour: &'k Result<Arc<Hour>, String>,
        overrides: &'k Result<Vec<Override>, Error>,
    ) -> Known<'k> {
        let reload = self.0.service.reloading().last_reload();
        let redis_error = overrides.as_ref().err().filter(|error| !error.is_timeout());
        Known {
            hour: hour.as_deref().map_err(|why| &**why),
            overrides: overrides.as_deref().map_err(ToString::to_string),
            reload_error: reload.and_then(|reload| reload.result().err().map(ToString::to_string)),
            redis_error: redis_error.map(ToString::to_string),
        }
    }

    /// Returns the state of Redis as this process sees it.
    pub(super) async fn own_health(&self) -> Vec<String> {
        if self.0.redis.is_none() {
            return vec![format!("{IN_MEMORY}.")];
        }
        let health = self.0.limiter.health().await;
        std::iter::once(health.to_string()).chain(health.warnings()).collect()
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("has_redis", &self.0.redis.is_some()).finish_non_exhaustive()
    }
}

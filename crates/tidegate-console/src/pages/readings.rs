//! What the pages are made from: the rules, the overrides, the figures of the fleet, and this process's own Redis.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::admin::{GivenKey, Inspector, RegionFigures};
use tidegate::{Error, Limiter, Override};
use tidegate_server::RateLimitService;

use super::catalog::Catalog;
use super::display::IN_MEMORY;
use super::figures::{Figures, NodeLoad};
use super::health::{ConditionInputs, RedisState};
use super::hour::{Hour, SETTLED};
use super::top::{Ranked, Top};

/// The readings that the pages share. Clones share them.
#[derive(Clone)]
pub(super) struct SharedReadings(Arc<SharedReadingsInner>);

struct SharedReadingsInner {
    service: RateLimitService,
    limiter: Limiter,
    is_in_memory: bool,
    /// `None` if the limiter is a stub.
    state: Option<StateReadings>,
}

/// The readers of the state in Redis, or in memory.
struct StateReadings {
    inspector: Inspector,
    figures: Figures,
    top: Top,
}

impl SharedReadings {
    /// Makes the readings of a service. Without `inspector`, the limiter has no Redis.
    pub(super) fn new(service: RateLimitService, inspector: Option<Inspector>) -> Self {
        let limiter = service.rules().limiter().clone();
        let is_in_memory = inspector.is_none();
        let settled = if is_in_memory { Duration::ZERO } else { SETTLED };
        let inspector = inspector.or_else(|| Inspector::in_memory(&limiter));
        let state = inspector.map(|inspector| StateReadings {
            figures: Figures::new(inspector.clone(), settled),
            top: Top::new(inspector.clone()),
            inspector,
        });
        Self(Arc::new(SharedReadingsInner { service, limiter, is_in_memory, state }))
    }

    pub(super) fn service(&self) -> &RateLimitService {
        &self.0.service
    }

    pub(super) fn namespace(&self) -> &str {
        self.inspector().map_or("in memory", Inspector::namespace)
    }

    fn state(&self) -> Result<&StateReadings, String> {
        self.0.state.as_ref().ok_or_else(|| IN_MEMORY.to_owned())
    }

    pub(super) fn inspector(&self) -> Result<&Inspector, String> {
        self.state().map(|state| &state.inspector)
    }

    /// Returns the forms that a key can have in the store.
    pub(super) fn stored_forms(&self, key: &GivenKey) -> Vec<String> {
        self.inspector().map_or_else(|_| Vec::new(), |inspector| inspector.stored_forms(key))
    }

    /// Returns the figures of the last hour, or why there are none.
    pub(super) async fn hour(&self) -> Result<Arc<Hour>, String> {
        let hour = self.state()?.figures.hour().await;
        hour.map_err(|error| format!("The figures of the fleet cannot be read: {error}"))
    }

    /// Returns the load of each server, or why it is not known.
    pub(super) async fn load(&self) -> Result<Vec<NodeLoad>, String> {
        if self.is_in_memory() {
            return Err(IN_MEMORY.to_owned());
        }
        self.state()?.figures.load().await.map_err(|error| {
            let text = error.to_string();
            let right = match text.contains("NOPERM") {
                true => " The Redis user of this process needs the right +info.",
                false => "",
            };
            format!("The load of Redis cannot be read: {text}.{right}")
        })
    }

    /// Returns the replication of gates, `None` if nothing is replicated, or why it is not known.
    pub(super) async fn regions(&self) -> Result<Option<RegionFigures>, String> {
        if self.is_in_memory() {
            return Err(IN_MEMORY.to_owned());
        }
        let regions = self.state()?.inspector.regions().await;
        regions.map_err(|error| format!("The regions cannot be read: {error}"))
    }

    /// Returns whether this process counts in its own memory.
    pub(super) fn is_in_memory(&self) -> bool {
        self.0.is_in_memory
    }

    pub(super) async fn overrides(&self) -> Result<Vec<Override>, Error> {
        self.0.limiter.control().overrides().await
    }

    /// Reads the next part of the keys of a gate, or of all.
    pub(super) async fn top(
        &self,
        gate: Option<&str>,
        overrides: &[Override],
        catalog: &Catalog,
    ) -> Result<Ranked, String> {
        let limits = catalog.limits(overrides);
        let ranked = self.state()?.top.read(gate, limits).await;
        ranked.map_err(|error| format!("The keys cannot be read: {error}"))
    }

    /// Returns the inputs of the runbook's conditions. The last call of this process, which reads the overrides, shows
    /// whether Redis answers it.
    pub(super) fn condition_inputs<'i>(
        &self,
        hour: &'i Result<Arc<Hour>, String>,
        overrides: &'i Result<Vec<Override>, Error>,
        regions: &'i Result<Option<RegionFigures>, String>,
        catalog: &'i Catalog,
    ) -> ConditionInputs<'i> {
        let reload = self.0.service.reloading().last_reload();
        ConditionInputs {
            catalog,
            hour: hour.as_deref().map_err(|why| &**why),
            overrides: overrides.as_deref().map_err(ToString::to_string),
            reload_error: reload.and_then(|reload| reload.result().err().map(ToString::to_string)),
            redis: match overrides {
                _ if self.is_in_memory() => RedisState::InMemory,
                Ok(_) => RedisState::Answers,
                Err(error) if has_answered(overrides) => RedisState::Rejects(error.to_string()),
                Err(error) => RedisState::Unavailable(error.to_string()),
            },
            regions,
        }
    }

    /// Returns the state of Redis as this process sees it.
    pub(super) async fn own_health(&self) -> Vec<String> {
        if self.0.is_in_memory {
            return vec![IN_MEMORY.to_owned()];
        }
        let health = self.0.limiter.health().await;
        std::iter::once(health.to_string()).chain(health.warnings()).collect()
    }
}

/// Returns whether Redis has answered a call, also if it has rejected it.
pub(super) fn has_answered<T>(reply: &Result<T, Error>) -> bool {
    reply.as_ref().err().is_none_or(|error| error.kind() == "refused")
}

impl fmt::Debug for SharedReadings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReadings").field("is_in_memory", &self.0.is_in_memory).finish_non_exhaustive()
    }
}

//! Readiness, health and shutdown.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::components::Pipeline;
use crate::connection::Deadline;
use crate::error::Error;
use crate::local::fallback::Fallback;
use crate::observe::health::Health;
use crate::quota::{Quota, Rate};
use crate::store::Group;

/// The time for which [`Limiter::ready`](crate::Limiter::ready) retries.
pub(crate) const READY: Duration = Duration::from_secs(5);
/// The longest attempt of `ready`: longer than an attempt to connect, whose error names the cause. A lost connection shows
/// only at the end of an attempt.
const READY_ATTEMPT: Duration = Duration::from_secs(2);
/// The pause between two attempts of `ready`.
const READY_PAUSE: Duration = Duration::from_millis(50);
/// The quotas of the charges that `ready_to_charge` makes: they admit all processes of a fleet, and their keys expire within
/// a tenth of a second.
const CHARGE_PROBES: [Quota; 2] = [
    Quota::fixed_window(1_000_000, Duration::from_millis(100)),
    Quota::token_bucket(1_000_000, Rate::per_second(10_000_000)),
];
/// The time limit of a shutdown for giving back leases, releasing permits, reconciling the fallback's units, queued
/// settles, the last figures, and the last charges for other regions.
const SHUTDOWN: Duration = Duration::from_secs(6);

impl Pipeline {
    /// Repeats a peek until Redis answers or rejects it, for at most `patience`.
    pub(crate) async fn ready(&self, patience: Duration) -> Result<(), Error> {
        self.ready_for(&self.probe, patience).await
    }

    /// Does the same with a charge by each of the two most used algorithms.
    pub(crate) async fn ready_to_charge(&self, patience: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        for quota in CHARGE_PROBES {
            let charge = self.charge_probe(quota)?;
            self.ready_for(&charge, patience.saturating_sub(begun.elapsed())).await?;
        }
        Ok(())
    }

    /// Repeats a call until Redis answers or rejects it, for at most `patience`.
    async fn ready_for(&self, probe: &Group, patience: Duration) -> Result<(), Error> {
        if self.store.fixed_decision().is_some() {
            return self.ensure_open();
        }
        let begun = Instant::now();
        let mut cause = None;
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            let attempt = self.take(probe.clone(), Deadline::new(left.min(READY_ATTEMPT))).await;
            let Err(error) = attempt else { return Ok(()) };
            let is_final = error.is_rejected() || !error.is_unavailable();
            // An open circuit breaker follows from the cause, and a last attempt may be too short to find it.
            let error = match cause.take() {
                Some(cause) if error.is_breaker_open() || error.is_timeout() => cause,
                _ => error,
            };
            if is_final || begun.elapsed() + READY_PAUSE >= patience {
                return Err(match self.store.address() {
                    Some(address) if error.is_unavailable() => error.at(address),
                    _ => error,
                });
            }
            cause = Some(error);
            tokio::time::sleep(READY_PAUSE).await;
        }
    }

    /// Calls the server even if the breaker is open: a health check may wait.
    pub(crate) async fn health(&self) -> Health {
        let server = match self.ensure_open() {
            Ok(()) => self.store.server(Deadline::new(self.operator_deadline)).await,
            Err(error) => Err(error),
        };
        Health {
            breaker_open_for: self.breaker.as_ref().and_then(|breaker| breaker.open_for()),
            instances: self.fallback.as_ref().map_or(1, Fallback::instances),
            server,
            #[cfg(feature = "regions")]
            replication: self.replication_status().map_or_else(Vec::new, |status| status.warnings()),
            #[cfg(not(feature = "regions"))]
            replication: Vec::new(),
        }
    }

    pub(crate) async fn shutdown(&self) {
        let ends = Instant::now() + SHUTDOWN;
        self.is_shut_down.store(true, Ordering::Release);
        self.leases.end(ends).await;
        self.permits.end(ends).await;
        if let Some(fallback) = &self.fallback {
            fallback.reconcile_before_shutdown(ends).await;
        }
        if let Some(settle_queue) = &self.settle_queue {
            settle_queue.end(ends).await;
        }
        if let Some(fallback) = &self.fallback {
            fallback.publish_last(ends).await;
        }
        #[cfg(feature = "regions")]
        if let Some(replicator) = &self.replicator {
            replicator.end(ends).await;
        }
        if let Some(breaker) = &self.breaker {
            breaker.shut_down();
        }
        self.store.close();
    }
}

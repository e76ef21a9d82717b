//! Readiness, health and shutdown.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::parts::Pipeline;
use crate::connection::Deadline;
use crate::error::Error;
use crate::fallback::Fallback;
use crate::health::Health;

/// The time limit of a shutdown for giving back leases, releasing permits, reconciling the fallback's units, queued
/// settles, and the last figures.
const SHUTDOWN: Duration = Duration::from_secs(6);

impl Pipeline {
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        if self.store.fixed_decision().is_some() {
            return self.ensure_open();
        }
        let result = self.take(self.probe.clone(), Deadline::new(self.deadline)).await;
        result.map(drop).map_err(|error| match self.store.address() {
            Some(address) if error.is_unavailable() => error.at(address),
            _ => error,
        })
    }

    /// Calls the server even if the breaker is open: a health check may wait.
    pub(crate) async fn health(&self) -> Health {
        let server = match self.ensure_open() {
            Ok(()) => self.store.server(Deadline::new(self.deadline)).await,
            Err(error) => Err(error),
        };
        Health {
            breaker_open_for: self.breaker.as_ref().and_then(|breaker| breaker.open_for()),
            instances: self.fallback.as_ref().map_or(1, Fallback::instances),
            server,
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
        if let Some(breaker) = &self.breaker {
            breaker.shut_down();
        }
        self.store.close();
    }
}

//! Sending checks to the store, through the circuit breaker and the batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Core;
use crate::batch::{Share, Taking};
use crate::connection::Deadline;
use crate::error::Error;
use crate::fallback::Fallback;
use crate::health::Health;
use crate::key::{HashTag, Keyspace};
use crate::keyed_hash::KeyedHasher;
use crate::quota::{Quota, Rate};
use crate::store::{GateInfo, Group, Item, Store, Target};

/// The time limit of a shutdown for giving back leases and charging Redis for the fallback's admissions.
const SHUTDOWN: Duration = Duration::from_secs(6);

impl Core {
    pub(in crate::limiter) async fn ready(&self) -> Result<(), Error> {
        if let Store::Always { .. } = *self.store {
            return self.ensure_open();
        }
        self.take(self.probe.clone(), Deadline::new(self.deadline)).await.map(drop)
    }

    /// Calls the server even if the breaker is open: a health check may wait.
    pub(in crate::limiter) async fn health(&self) -> Health {
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

    pub(in crate::limiter) async fn shutdown(&self) {
        let ends = Instant::now() + SHUTDOWN;
        self.is_shut_down.store(true, Ordering::Release);
        self.leases.end(ends).await;
        if let Some(fallback) = &self.fallback {
            fallback.reconcile_before_shutdown(ends).await;
        }
        if let Some(breaker) = &self.breaker {
            breaker.shut_down();
        }
        self.store.close();
    }

    pub(in crate::limiter) async fn take(&self, group: Group, deadline: Deadline) -> Result<Share, Error> {
        let hash_tag = match self.ensure_sendable(&group) {
            Ok(hash_tag) => hash_tag,
            Err(error) => {
                // Lets other tasks run where a caller checks in a loop.
                tokio::task::coop::consume_budget().await;
                return Err(error);
            }
        };
        let (since_us, taking) = self.call_store(group, deadline);
        let shared = taking.await;
        self.store_answered(hash_tag, &shared, since_us, deadline.after);
        shared
    }

    /// Called after [`ensure_sendable`](Self::ensure_sendable). The result goes to
    /// [`store_answered`](Self::store_answered).
    pub(super) fn call_store(&self, group: Group, deadline: Deadline) -> (Option<u64>, Taking<'_>) {
        self.ensure_background_jobs();
        (self.now_if_observed(), self.batch.take(group, deadline))
    }

    pub(super) fn store_answered(
        &self,
        hash_tag: HashTag,
        shared: &Result<Share, Error>,
        since_us: Option<u64>,
        deadline: Duration,
    ) {
        self.notify_waited(since_us);
        self.record(hash_tag, shared, deadline);
    }

    /// Returns one result per group. Groups whose hash tag is unavailable are not sent.
    pub(super) async fn take_each(
        &self,
        groups: Vec<Group>,
        deadline: Deadline,
    ) -> Vec<Result<Share, Error>> {
        if groups.is_empty() {
            return Vec::new();
        }
        self.ensure_background_jobs();
        let hash_tags: Vec<_> = groups.iter().map(|group| self.ensure_sendable(group)).collect();
        let groups = groups
            .into_iter()
            .zip(&hash_tags)
            .filter_map(|(group, hash_tag)| hash_tag.is_ok().then_some(group));
        let groups: Vec<_> = groups.collect();
        let since_us = self.now_if_observed();
        let is_sent = !groups.is_empty();
        let mut shares = self.batch.take_each(groups, deadline).await.into_iter();
        if is_sent {
            self.notify_waited(since_us);
        }
        let share_of = |hash_tag: Result<HashTag, Error>| {
            let hash_tag = hash_tag?;
            let share = shares.next().unwrap_or_else(|| Err(Error::unavailable("no reply")));
            self.record(hash_tag, &share, deadline.after);
            share
        };
        hash_tags.into_iter().map(share_of).collect()
    }

    /// Returns the time by this process's clock, if there is an observer.
    fn now_if_observed(&self) -> Option<u64> {
        self.observer.as_ref().map(|_| self.clock.local_us())
    }

    fn notify_waited(&self, since_us: Option<u64>) {
        if let (Some(observer), Some(since_us)) = (&self.observer, since_us) {
            observer.waited(Duration::from_micros(self.clock.local_us().saturating_sub(since_us)));
        }
    }

    /// Returns the group's hash tag, or an error if the limiter was shut down or the circuit breaker does not
    /// let the group be sent.
    #[inline]
    pub(super) fn ensure_sendable(&self, group: &Group) -> Result<HashTag, Error> {
        self.ensure_open()?;
        self.ensure_available(group.hash_tag())?;
        Ok(group.hash_tag())
    }

    /// Returns an error if the circuit breaker does not let checks of this hash tag be sent.
    #[inline]
    pub(super) fn ensure_available(&self, hash_tag: HashTag) -> Result<(), Error> {
        self.breaker.as_ref().map_or(Ok(()), |breaker| breaker.check(hash_tag))
    }

    /// Starts the background jobs of every limiter in use: reading overrides, and heartbeats.
    #[inline]
    pub(super) fn ensure_background_jobs(&self) {
        self.overrides.ensure_followed();
        if let Some(fallback) = &self.fallback {
            fallback.ensure_counted();
        }
    }

    /// Runs a job in the background, independent of the caller's runtime.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(job);
    }

    pub(super) fn record<T>(&self, hash_tag: HashTag, result: &Result<T, Error>, deadline: Duration) {
        if let Some(breaker) = &self.breaker {
            breaker.record(hash_tag, result, deadline);
        }
    }

    pub(crate) fn ensure_open(&self) -> Result<(), Error> {
        match self.is_shut_down.load(Ordering::Acquire) {
            true => Err(Error::shut_down()),
            false => Ok(()),
        }
    }
}

/// Returns peeks, which write nothing: one for each hash tag of a cluster, otherwise one.
pub(super) fn probes(keyspace: &Keyspace, keyed_hasher: &KeyedHasher) -> Result<Vec<Group>, Error> {
    let quota = Quota::token_bucket(1, Rate::per_second(1));
    let gate = Arc::new(GateInfo::new(keyspace, keyed_hasher, "ready", quota)?);
    let probe = |hash_tag| {
        let target = Target::at(&gate, b"", hash_tag);
        Group::of_one(Item { target, cost: 0, max_delay_us: None })
    };
    Ok(keyspace.hash_tags().map(probe).collect())
}

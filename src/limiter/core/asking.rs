//! The store, asked through the breaker and the batch; and whether it can be.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;
use crate::batch::{Share, Taking};
use crate::connection::Deadline;
use crate::error::Error;
use crate::fallback::Fallback;
use crate::fingerprint::Fingerprints;
use crate::health::Health;
use crate::key::Keyspace;
use crate::quota::{Quota, Rate};
use crate::store::{GateInfo, Group, Item, Store, Target};

/// The longest that a shutdown gives leases back.
const LAST_GIVE_BACK: Duration = Duration::from_secs(6);

impl Core {
    pub(in crate::limiter) async fn ready(&self) -> Result<(), Error> {
        if let Store::Always { .. } = *self.store {
            return self.open();
        }
        self.take(self.probe.clone(), Deadline::new(self.deadline)).await.map(drop)
    }

    /// Asks also where the breaker is open: whoever wants to know waits for it.
    pub(in crate::limiter) async fn health(&self) -> Health {
        let server = match self.open() {
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
        self.is_shut_down.store(true, Ordering::Release);
        self.leases.end(LAST_GIVE_BACK).await;
        if let Some(breaker) = &self.breaker {
            breaker.end();
        }
        self.store.close();
    }

    pub(in crate::limiter) async fn take(&self, group: Group, deadline: Deadline) -> Result<Share, Error> {
        if let Err(error) = self.open().and_then(|()| self.pass()) {
            // Who asks in a loop should let others run now and then.
            tokio::task::coop::consume_budget().await;
            return Err(error);
        }
        let (since_us, taking) = self.ask_store(group, deadline);
        let shared = taking.await;
        self.store_answered(&shared, since_us, deadline.after);
        shared
    }

    /// Where it was found that it may be. Once the answer is there, so is
    /// [`store_answered`](Self::store_answered) to be told.
    pub(super) fn ask_store(&self, group: Group, deadline: Deadline) -> (Option<u64>, Taking<'_>) {
        (self.now_if_observed(), self.batch.take(group, deadline))
    }

    pub(super) fn store_answered(
        &self,
        shared: &Result<Share, Error>,
        since_us: Option<u64>,
        deadline: Duration,
    ) {
        self.tell_waited(since_us);
        self.saw(shared, deadline);
    }

    pub(super) async fn take_each(
        &self,
        groups: Vec<Group>,
        deadline: Deadline,
    ) -> Vec<Result<Share, Error>> {
        if groups.is_empty() {
            return Vec::new();
        }
        if let Err(error) = self.open().and_then(|()| self.pass()) {
            return vec![Err(error); groups.len()];
        }
        let since_us = self.now_if_observed();
        let shares = self.batch.take_each(groups, deadline).await;
        self.tell_waited(since_us);
        shares.iter().for_each(|share| self.saw(share, deadline.after));
        shares
    }

    /// By this process's clock.
    fn now_if_observed(&self) -> Option<u64> {
        self.observer.as_ref().map(|_| self.clock.local_us())
    }

    fn tell_waited(&self, since_us: Option<u64>) {
        if let (Some(observer), Some(since_us)) = (&self.observer, since_us) {
            observer.waited(Duration::from_micros(self.clock.local_us().saturating_sub(since_us)));
        }
    }

    /// Whether the store is to be asked.
    pub(super) fn pass(&self) -> Result<(), Error> {
        self.orders.follow();
        if let Some(fallback) = &self.fallback {
            fallback.be_counted();
        }
        self.breaker.as_ref().map_or(Ok(()), |breaker| breaker.check())
    }

    pub(super) fn saw<T>(&self, result: &Result<T, Error>, deadline: Duration) {
        if let Some(breaker) = &self.breaker {
            breaker.saw(result, deadline);
        }
    }

    pub(crate) fn open(&self) -> Result<(), Error> {
        match self.is_shut_down.load(Ordering::Acquire) {
            true => Err(Error::shut_down()),
            false => Ok(()),
        }
    }
}

/// A peek, which writes nothing.
pub(super) fn probe(keyspace: &Keyspace, fingerprints: &Fingerprints) -> Result<Group, Error> {
    let quota = Quota::token_bucket(1, Rate::per_second(1));
    let gate = Arc::new(GateInfo::new(keyspace, fingerprints, "ready", quota)?);
    Ok(Group::of_one(Item { target: Target::new(&gate, b"", None), cost: 0, max_delay_us: None }))
}

//! Stages 4 to 6: the breaker lets a group through, the batch sends it to the store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::Either;

use super::components::Pipeline;
use crate::batch::Share;
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::HashTag;
use crate::observe::observer::Event;
use crate::store::Group;

impl Pipeline {
    /// Stages 4 to 6 of one group. Enqueues it at once; the future is small while it waits.
    pub(super) fn take(
        &self,
        group: Group,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Share, Error>> {
        match self.ensure_sendable(&group) {
            Ok(hash_tag) => Either::Left(self.send(hash_tag, group, deadline)),
            Err(error) => Either::Right(without_waiting(Err(error))),
        }
    }

    /// Stage 4: returns the group's hash tag, or an error if the limiter was shut down or the circuit breaker
    /// does not let the group be sent.
    #[inline]
    pub(super) fn ensure_sendable(&self, group: &Group) -> Result<HashTag, Error> {
        self.ensure_open()?;
        self.ensure_available(group.hash_tag())?;
        Ok(group.hash_tag())
    }

    /// Stages 5 and 6 of a store in this process's memory, which waits for nothing. Returns `None` for other stores.
    #[inline]
    pub(super) fn take_in_memory(&self, group: &Group) -> Option<Result<Share, Error>> {
        let since_us = self.now_if_measured();
        let share = self.batch.take_in_memory(group)?;
        self.notify_waited(since_us);
        Some(share)
    }

    /// Stages 5 and 6. Enqueues the group at once; the future is small while it waits.
    pub(super) fn send(
        &self,
        hash_tag: HashTag,
        group: Group,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Share, Error>> {
        self.ensure_background_jobs();
        let since_us = self.now_if_measured();
        let taking = self.batch.take(group, deadline);
        async move {
            let share = taking.await;
            self.notify_waited(since_us);
            self.record_result(hash_tag, &share, deadline.after);
            share
        }
    }

    /// Stages 4 to 6 of several groups. Returns one result per group. Groups whose hash tag is unavailable
    /// are not sent.
    pub(super) async fn send_each(
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
        let since_us = self.now_if_measured();
        let is_sent = !groups.is_empty();
        let mut shares = self.batch.take_each(groups, deadline).await.into_iter();
        if is_sent {
            self.notify_waited(since_us);
        }
        let share_of = |hash_tag: Result<HashTag, Error>| {
            let hash_tag = hash_tag?;
            let share = shares.next().unwrap_or_else(|| Err(Error::unavailable("no reply")));
            self.record_result(hash_tag, &share, deadline.after);
            share
        };
        hash_tags.into_iter().map(share_of).collect()
    }

    /// Returns an error if the circuit breaker does not let checks of this hash tag be sent.
    #[inline]
    pub(super) fn ensure_available(&self, hash_tag: HashTag) -> Result<(), Error> {
        self.breaker.as_ref().map_or(Ok(()), |breaker| breaker.check(hash_tag))
    }

    #[inline]
    pub(crate) fn ensure_open(&self) -> Result<(), Error> {
        match self.is_shut_down.load(Ordering::Acquire) {
            true => Err(Error::shut_down()),
            false => Ok(()),
        }
    }

    /// Starts the background jobs of every limiter in use: reading overrides, and heartbeats, with which it
    /// publishes figures.
    #[inline]
    pub(super) fn ensure_background_jobs(&self) {
        self.overrides.ensure_followed();
        if let Some(fallback) = &self.fallback {
            fallback.ensure_counted();
        }
    }

    /// Counts the result of a call in the circuit breaker.
    pub(super) fn record_result<T>(&self, hash_tag: HashTag, result: &Result<T, Error>, deadline: Duration) {
        if let Some(breaker) = &self.breaker {
            breaker.record(hash_tag, result, deadline);
        }
    }

    /// Returns the time by this process's clock, if an observer or the figures need it.
    pub(super) fn now_if_measured(&self) -> Option<u64> {
        let is_measured = self.events.is_observed() || self.figures.is_some();
        is_measured.then(|| self.clock.local_us())
    }

    /// Counts the latency in the figures, and notifies the observer.
    pub(super) fn notify_waited(&self, since_us: Option<u64>) {
        let Some(since_us) = since_us else { return };
        let took_us = self.clock.local_us().saturating_sub(since_us);
        if let Some(figures) = &self.figures {
            figures.count_latency(took_us);
        }
        self.events.notify(&Event::Waited(Duration::from_micros(took_us)));
    }
}

/// Lets other tasks run if a caller checks in a loop.
pub(super) async fn without_waiting<T>(decided: T) -> T {
    tokio::task::coop::consume_budget().await;
    decided
}

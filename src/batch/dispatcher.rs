//! A dispatcher: a task that sends enqueued checks until the queues are empty.

use std::sync::Arc;

use tokio::time::Instant;

use super::BatchInner;
use super::destination::Destination;
use super::dispatchers::DispatcherId;
use super::queue::{Batched, Merged};
use super::sent::{SentBatch, SentCall};
use crate::connection::Deadline;
use crate::store::{Group, MAX_WORK};

/// The maximum number of yields. More would make callers wait longer than merging saves.
const ROUNDS: usize = 2;
/// The work of a full call.
const FULL: usize = MAX_WORK as usize / 2;

pub(super) struct Dispatcher {
    shared: Arc<BatchInner>,
    destination: usize,
    id: DispatcherId,
    in_flight: Arc<SentBatch>,
    is_on_reaper: bool,
    has_ended: bool,
}

impl Dispatcher {
    pub(super) fn new(
        shared: Arc<BatchInner>,
        destination: usize,
        id: DispatcherId,
        in_flight: Arc<SentBatch>,
    ) -> Self {
        Self { shared, destination, id, in_flight, is_on_reaper: false, has_ended: false }
    }

    pub(super) async fn run(mut self) {
        while let Some(call) = self.next() {
            *self.in_flight.call() = Some(call);
            self.in_flight.reply().await;
            yield_to_followers(&self.shared.destinations[self.destination]).await;
        }
    }

    /// Runs on the reaper's runtime.
    pub(super) fn on_reaper(mut self) -> impl Future<Output = ()> + Send + 'static {
        self.is_on_reaper = true;
        self.run()
    }

    /// Returns the next call: of the batch that the dispatcher already has, if it began on a runtime that
    /// ended, or of a new one.
    fn next(&mut self) -> Option<SentCall> {
        let in_flight = self.in_flight.clone();
        let mut batch = in_flight.batch();
        batch.retain_mut(Merged::is_waited_for);
        while batch.is_empty() {
            *batch = self.pop()?;
            batch.retain_mut(Merged::is_waited_for);
        }
        let began = Instant::now();
        let at = batch.iter().filter_map(Merged::last_deadline).max().unwrap_or(began);
        let groups: Arc<[Group]> = batch.iter_mut().map(Merged::send).collect();
        let checks = batch.iter().map(|merged| merged.callers.len()).sum();
        let shared = self.shared.clone();
        let deadline = Deadline { at, after: shared.longest };
        let began_us = shared.reaper.micros(began);
        let sent = groups.clone();
        let reply = Box::pin(async move { shared.call(&sent, checks, deadline).await });
        Some(SentCall { reply, groups, began_us })
    }

    /// Takes the next batch. Returns `None` if nothing is enqueued: the dispatcher has ended then.
    fn pop(&mut self) -> Option<Vec<Merged>> {
        let destination = &self.shared.destinations[self.destination];
        let now_us = || self.shared.reaper.micros(Instant::now());
        let take = || Some(pop(destination)).filter(|batch| !batch.is_empty());
        let batch = destination.dispatchers.next_batch(self.id, &self.in_flight, now_us, take);
        self.has_ended = batch.is_none();
        batch
    }
}

/// Lets other tasks run before the next call: callers with an answer check again, and each check that joins
/// saves Redis part of a call. Yields a second time if more checks have come, unless the call is full.
async fn yield_to_followers(destination: &Destination) {
    let mut before = None;
    for _ in 0..ROUNDS {
        let (checks, rows) = destination.waiting();
        if rows >= FULL || before == Some(checks) {
            break;
        }
        before = Some(checks);
        tokio::task::yield_now().await;
    }
}

/// Takes one batch from all shards.
fn pop(destination: &Destination) -> Vec<Merged> {
    let mut batch = Batched::default();
    for shard in destination.shards_in_turn() {
        shard.free(|queue| queue.pop_into(&mut batch));
    }
    batch.merged
}

/// Runs when a dispatcher's runtime ends before the dispatcher. The dispatcher continues on the reaper's
/// runtime with the same id, so checks of other runtimes always have a dispatcher.
///
/// The batch in flight is sent again. Redis may have counted the first call: a retried take over-charges at
/// worst. Its denials are not counted again.
impl Drop for Dispatcher {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let groups = self.in_flight.call().take().map(|call| call.groups);
        let destination = &self.shared.destinations[self.destination];
        if let Some(thread) = self.shared.reaper.thread().filter(|_| !self.is_on_reaper) {
            destination.dispatchers.begins_a_call(self.id, self.shared.reaper.micros(Instant::now()));
            let groups = groups.iter().flat_map(|groups| &**groups);
            let mut batch = self.in_flight.batch();
            batch.iter_mut().zip(groups).for_each(|(merged, group)| merged.group = group.uncounted());
            drop(batch);
            let goes_on = Self::new(self.shared.clone(), self.destination, self.id, self.in_flight.clone());
            thread.spawn(goes_on.on_reaper());
            return;
        }
        // Its callers get an error. Enqueued checks wait for the next caller's dispatcher.
        self.in_flight.batch().clear();
        destination.dispatchers.has_landed(&self.in_flight);
        destination.dispatchers.forget(self.id);
    }
}

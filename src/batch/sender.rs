//! A task that sends what lines up, until nothing does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::queue::{Merged, Told};
use super::{Line, Shared, UnderWay, locked};
use crate::connection::Deadline;
use crate::store::Group;

/// What is under way, where callers whose deadline passes meanwhile are found.
#[derive(Debug, Default)]
pub(super) struct Flight(Mutex<Vec<Merged>>);

impl Flight {
    /// Never while the line is locked: a sender locks both, the line second.
    fn lock(&self) -> MutexGuard<'_, Vec<Merged>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Merged::tell_late`].
    pub(super) fn tell_late(&self, now: Instant, late: impl Fn(Deadline) -> Told) -> Option<Instant> {
        self.lock().iter_mut().filter_map(|merged| merged.tell_late(now, &late)).min()
    }
}

pub(super) struct Sender {
    shared: Arc<Shared>,
    lane: usize,
    number: u64,
    flight: Arc<Flight>,
    has_ended: bool,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, lane: usize, number: u64, flight: Arc<Flight>) -> Self {
        Self { shared, lane, number, flight, has_ended: false }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        while let Some((groups, asks, deadline)) = self.next(&shared) {
            let (outcomes, sent_us) = shared.call(&groups, asks, deadline).await;
            let batch = std::mem::take(&mut *self.flight.lock());
            for (merged, outcome) in batch.into_iter().zip(outcomes) {
                merged.share_out(outcome, sent_us);
            }
        }
    }

    /// What to send next, how many asks it is, and by when an answer is wanted.
    fn next(&mut self, shared: &Shared) -> Option<(Vec<Group>, usize, Deadline)> {
        let flight = self.flight.clone();
        let mut batch = flight.lock();
        while batch.is_empty() {
            *batch = self.pop(shared)?;
            batch.retain_mut(Merged::is_waited_for);
        }
        let at = batch.iter().filter_map(Merged::last_deadline).max().unwrap_or_else(Instant::now);
        let groups = batch.iter().map(|merged| merged.group.clone()).collect();
        let asks = batch.iter().map(|merged| merged.callers.len()).sum();
        Some((groups, asks, Deadline { at, after: shared.longest }))
    }

    /// `None` where nothing waits: then it is no sender any more.
    fn pop(&mut self, shared: &Shared) -> Option<Vec<Merged>> {
        let lane = &shared.lanes[self.lane];
        let mut line = locked(&lane.line);
        let was_full = line.queue.is_full(shared.most.waiting);
        let batch = line.queue.pop_batch();
        if was_full {
            lane.room.notify_one();
        }
        if batch.is_empty() {
            self.end(shared, &mut line);
            return None;
        }
        if let Some((_, since)) = line.senders.iter_mut().find(|(number, _)| *number == self.number) {
            *since = Instant::now();
        }
        Some(batch)
    }

    fn end(&mut self, shared: &Shared, line: &mut Line) {
        // It may not be counted any more.
        line.forget(shared.under_way(self.lane), |(number, _)| *number == self.number);
        line.flights.retain(|flight| !Arc::ptr_eq(flight, &self.flight));
        self.has_ended = true;
    }
}

impl Line {
    /// Senders that do not count any more.
    pub(super) fn forget(&mut self, under_way: &UnderWay, which: impl Fn(&(u64, Instant)) -> bool) {
        let forgotten = self.senders.extract_if(.., |sender| which(sender)).count();
        if forgotten > 0 {
            under_way.senders.fetch_sub(forgotten, Ordering::Relaxed);
        }
    }
}

/// Its runtime may end before it does. Nobody else might come to send what is
/// left then, so whoever waits for that is told.
impl Drop for Sender {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let shared = self.shared.clone();
        let lane = &shared.lanes[self.lane];
        let mut line = locked(&lane.line);
        self.end(&shared, &mut line);
        if line.senders.is_empty() {
            line.queue.clear();
            lane.room.notify_one();
        }
    }
}

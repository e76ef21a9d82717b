//! A task that sends what lines up, until nothing does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::Shared;
use super::place::{Number, Place};
use super::queue::{Batched, Merged, Told};
use crate::connection::Deadline;
use crate::error::Error;
use crate::store::{Group, MOST_WORK, Outcome};

/// What is under way, where callers whose deadline passes meanwhile are found.
#[derive(Debug, Default)]
pub(super) struct Flight(Mutex<Vec<Merged>>);

impl Flight {
    /// Never while a line is locked: a sender locks both, the line second.
    fn lock(&self) -> MutexGuard<'_, Vec<Merged>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Merged::tell_late`].
    pub(super) fn tell_late(&self, now: Instant, late: impl Fn(Deadline) -> Told) -> Option<Instant> {
        self.lock().iter_mut().filter_map(|merged| merged.tell_late(now, &late)).min()
    }

    fn share_out(&self, outcomes: Vec<Result<Outcome, Error>>, sent_us: u64) {
        let batch = std::mem::take(&mut *self.lock());
        for (merged, outcome) in batch.into_iter().zip(outcomes) {
            merged.share_out(outcome, sent_us);
        }
    }
}

/// More would let callers wait longer than they gain.
const GATHERS: usize = 2;
/// As many levels as go into a call.
const FULL: usize = MOST_WORK as usize / 2;

pub(super) struct Sender {
    shared: Arc<Shared>,
    place: usize,
    number: Number,
    flight: Arc<Flight>,
    has_ended: bool,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, place: usize, number: Number, flight: Arc<Flight>) -> Self {
        Self { shared, place, number, flight, has_ended: false }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        while let Some((groups, asks, deadline)) = self.next(&shared) {
            let (outcomes, sent_us) = shared.call(&groups, asks, deadline).await;
            self.flight.share_out(outcomes, sent_us);
            gather(&shared.places[self.place]).await;
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
        let place = &shared.places[self.place];
        let now_us = || shared.watch.micros(Instant::now());
        let batch = pop(place);
        if !batch.is_empty() {
            place.begins_a_call(&self.number, now_us());
            return Some(batch);
        }
        place.forget(&self.number);
        // Who lined up before that relied on it.
        let batch = pop(place);
        if !batch.is_empty() {
            place.remember(&self.number, now_us());
            return Some(batch);
        }
        place.has_landed(&self.flight);
        self.has_ended = true;
        None
    }
}

/// Lets others run before the next call: those who are just answered ask again, and each that goes
/// along spares Redis a part of a call. Again if more have come, but not where a call is full.
async fn gather(place: &Place) {
    let mut before = None;
    for _ in 0..GATHERS {
        let (asks, rows) = place.waiting();
        if rows >= FULL || before == Some(asks) {
            break;
        }
        before = Some(asks);
        tokio::task::yield_now().await;
    }
}

/// What goes out together, of all lines.
fn pop(place: &Place) -> Vec<Merged> {
    let mut batch = Batched::default();
    for line in place.lines_in_turn() {
        let mut queue = line.lock();
        let was_full = queue.is_full(place.most.waiting);
        queue.pop_into(&mut batch);
        drop(queue);
        if was_full {
            line.room.notify_one();
        }
    }
    batch.merged
}

/// Its runtime may end before it does. Nobody else might come to send what is
/// left then, so whoever waits for that is told.
impl Drop for Sender {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let place = &self.shared.places[self.place];
        place.has_landed(&self.flight);
        if !place.forget(&self.number) {
            for line in &place.lines {
                line.lock().clear();
                line.room.notify_one();
            }
        }
    }
}

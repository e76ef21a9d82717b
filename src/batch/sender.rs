//! A task that sends what lines up, until nothing does.

use std::sync::Arc;

use tokio::time::Instant;

use super::queue::Merged;
use super::{Lane, Line, Shared, locked};
use crate::connection::Deadline;
use crate::store::Group;

pub(super) struct Sender {
    shared: Arc<Shared>,
    lane: usize,
    number: u64,
    has_ended: bool,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, lane: usize, number: u64) -> Self {
        Self { shared, lane, number, has_ended: false }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        while let Some(batch) = self.next(&shared.lanes[self.lane]) {
            let at = batch.iter().filter_map(Merged::last_deadline).max().unwrap_or_else(Instant::now);
            let groups: Vec<Group> = batch.iter().map(|merged| merged.group.clone()).collect();
            let asks = batch.iter().map(|merged| merged.callers.len()).sum();
            let deadline = Deadline { at, after: shared.longest };
            let (outcomes, sent_us) = shared.call(&groups, asks, deadline).await;
            for (merged, outcome) in batch.into_iter().zip(outcomes) {
                merged.share_out(outcome, sent_us);
            }
        }
    }

    fn next(&mut self, Lane { most, line, room }: &Lane) -> Option<Vec<Merged>> {
        let mut line = locked(line);
        let was_full = line.queue.is_full(most.waiting);
        let batch = line.queue.pop_batch();
        if was_full {
            room.notify_one();
        }
        if batch.is_empty() {
            line.end(self.number);
            self.has_ended = true;
            return None;
        }
        if let Some((_, since)) = line.senders.iter_mut().find(|(number, _)| *number == self.number) {
            *since = Instant::now();
        }
        Some(batch)
    }
}

impl Line {
    /// It may not be counted any more.
    fn end(&mut self, sender: u64) {
        self.senders.retain(|(number, _)| *number != sender);
    }
}

/// Its runtime may end before it does. Nobody else might come to send what is
/// left then, so whoever waits for that is told.
impl Drop for Sender {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let Lane { line, room, .. } = &self.shared.lanes[self.lane];
        let mut line = locked(line);
        line.end(self.number);
        if line.senders.is_empty() {
            line.queue.clear();
            room.notify_one();
        }
    }
}

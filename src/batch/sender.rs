//! A task that sends what lines up, until nothing does.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::queue::Merged;
use super::{Line, Shared, locked};
use crate::connection::Deadline;
use crate::store::Group;

pub(super) struct Sender {
    shared: Arc<Shared>,
    number: u64,
    has_ended: bool,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Self {
        Self { shared, number, has_ended: false }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        let Some(line) = &shared.line else { return };
        while let Some(batch) = self.next(line) {
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

    fn next(&mut self, line: &Mutex<Line>) -> Option<Vec<Merged>> {
        let mut line = locked(line);
        let was_full = line.queue.is_full();
        let batch = line.queue.pop_batch();
        if was_full {
            self.shared.room.notify_one();
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
        let Some(line) = self.shared.line.as_ref().filter(|_| !self.has_ended) else { return };
        let mut line = locked(line);
        line.end(self.number);
        if line.senders.is_empty() {
            line.queue.clear();
            self.shared.room.notify_one();
        }
    }
}

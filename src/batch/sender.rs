//! A task that sends what lines up, until nothing does.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use tokio::runtime;
use tokio::time::Instant;

use super::queue::Merged;
use super::{Line, Shared, locked};
use crate::connection::Deadline;
use crate::store::Group;

pub(super) struct Sender {
    shared: Arc<Shared>,
    /// Its runtime, if that is a current-thread one.
    idle: Option<runtime::Id>,
    has_ended: bool,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, idle: Option<runtime::Id>) -> Self {
        Self { shared, idle, has_ended: false }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        let Some(line) = &shared.line else { return };
        while let Some(mut batch) = self.next(line) {
            let at = batch.iter().filter_map(Merged::last_deadline).max().unwrap_or_else(Instant::now);
            let groups: Vec<Group> = batch.iter().map(|merged| merged.group.clone()).collect();
            let asks = batch.iter().map(|merged| merged.callers.len()).sum();
            let mut call = pin!(shared.call(&groups, asks, Deadline { at, after: shared.longest }));
            let (outcomes, sent_us) = loop {
                let next = shared.tell_the_late(line, &mut batch).unwrap_or(at);
                if let Ok(done) = tokio::time::timeout_at(next, &mut call).await {
                    break done;
                }
            };
            for (merged, outcome) in batch.into_iter().zip(outcomes) {
                merged.share_out(outcome, sent_us);
            }
        }
    }

    fn next(&mut self, line: &Mutex<Line>) -> Option<Vec<Merged>> {
        let mut line = locked(line);
        let was_full = line.queue.is_full();
        let batch = line.queue.pop_batch();
        if batch.is_empty() {
            line.end_sender(self.idle);
            self.has_ended = true;
        }
        if was_full {
            self.shared.room.notify_one();
        }
        (!self.has_ended).then_some(batch)
    }
}

/// Its runtime may end before it does. Nobody else might come to send what is
/// left then, so whoever waits for that is told.
impl Drop for Sender {
    fn drop(&mut self) {
        let Some(line) = self.shared.line.as_ref().filter(|_| !self.has_ended) else { return };
        let mut line = locked(line);
        line.end_sender(self.idle);
        if line.senders == 0 && line.idle_senders.is_empty() {
            line.queue.clear();
            self.shared.room.notify_one();
        }
    }
}

//! The job that moves changes from the outbox into the stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::Shared;
use crate::connection::Backoff;
use crate::regions::Replication;
use crate::runtime::sync::lock;

/// The most changes of an entry: a peer skips an entry with more.
pub(super) const MAX_CHANGES: usize = 128;

/// Flushes until the replicator is dropped. The first change after a pause leaves at once, later ones within
/// `flush_every`.
pub(super) async fn run(shared: Arc<Shared>) {
    let every = shared.settings.replication.flush_every.max(Duration::from_millis(1));
    let mut pause = Backoff::default();
    loop {
        let began = Instant::now();
        match flush(&shared).await {
            None => {
                pause.begin();
                pause.wait().await;
            }
            Some(0) => {
                pause.reset();
                // Other processes may have added changes and died. The flush also trims the stream.
                if timeout_at(began + 10 * every, shared.changed.notified()).await.is_ok() {
                    sleep_until(began + every).await;
                }
            }
            Some(_) => pause.reset(),
        }
    }
}

/// Flushes until nothing is left, or until a flush fails.
pub(super) async fn flush_all(shared: &Shared) {
    while flush(shared).await.is_some_and(|left| left > 0) {}
}

/// Moves changes into one entry. Returns how many are left, or `None` after an error.
async fn flush(shared: &Shared) -> Option<u64> {
    let Replication { retention, max_entries, .. } = shared.settings.replication;
    let flushed = shared.local.flush(MAX_CHANGES, retention, max_entries).await;
    let left = flushed.as_ref().ok().copied();
    let waiting = match left {
        Some(left) => Some(left),
        // Takes still add changes while Redis rejects flushes.
        None => shared.local.waiting().await.ok(),
    };
    let mut state = lock(&shared.flusher);
    state.left = waiting.unwrap_or(state.left);
    state.error = flushed.err();
    left
}

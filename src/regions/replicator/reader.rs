//! The job that reads the stream of a peer, and applies it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use super::losses::Losses;
use super::parts::parts;
use super::status::PeerState;
use super::stream::{Reading, Stream};
use crate::connection::Backoff;
use crate::error::Error;
use crate::regions::reference::Batch;
use crate::regions::script::Applied;
use crate::runtime::sync::{MutexGuard, lock};

/// The time between two looks at the figures of a stream: a failover may have lost its end, and then XREAD is silent.
const CHECK: Duration = Duration::from_secs(1);

pub(super) struct PeerReader {
    shared: Arc<Shared>,
    /// The index of the peer.
    peer: usize,
    stream: Stream,
    checked: Option<Instant>,
    losses: Losses,
}

impl PeerReader {
    pub(super) fn new(shared: Arc<Shared>, peer: usize, stream: Stream) -> Self {
        Self { shared, peer, stream, checked: None, losses: Losses::default() }
    }

    /// Reads until the replicator is dropped. After an error, begins again with the stored cursor.
    pub(super) async fn run(mut self) {
        let mut pause = Backoff::default();
        loop {
            match self.step().await {
                Ok(refused) => {
                    self.state().error = refused;
                    pause.reset();
                }
                Err(error) => {
                    self.checked = None;
                    self.state().error = Some(error);
                    pause.begin();
                    pause.wait().await;
                }
            }
        }
    }

    /// Reads once, and applies all that was read. Returns why the peer refused the acknowledgement, if it did, or how its
    /// settings differ.
    async fn step(&mut self) -> Result<Option<Error>, Error> {
        let shared = self.shared.clone();
        let peer = &*shared.settings.peers[self.peer].0;
        let before = shared.local.before(peer).await?;
        self.state().note_stored(&before);
        let is_check = before.cursor.is_none() || self.checked.is_none_or(|at| at.elapsed() >= CHECK);
        let mut reading = self.stream.read(before.cursor.as_ref(), is_check).await?;
        if is_check {
            self.checked = Some(Instant::now());
        }
        let differs = shared.settings.compare(peer, before.common.as_deref());
        let refused = reading.refused.take().or(differs);
        let mut found = self.losses.find(before.cursor, &reading);
        self.note_times(&reading);
        let mut end = found.cursor.position;
        for (batch, skipped) in parts(&before, found.cursor, reading) {
            let Applied::Done(failed) = shared.local.apply(peer, &batch).await? else {
                self.state().fenced += 1;
                return Ok(refused);
            };
            end = batch.next.position;
            let mut state = self.state();
            state.note_applied(count(&batch), failed.len() as u64, skipped);
            state.rewound += u64::from(std::mem::take(&mut found.is_rewound));
            state.gaps += u64::from(std::mem::take(&mut found.is_gap));
            if batch.is_complete {
                state.note_heard(&before);
            }
        }
        self.losses.note_applied(end, &found);
        Ok(refused)
    }

    fn note_times(&self, reading: &Reading) {
        let age = |id: (u64, u64)| Duration::from_millis((reading.peer_us / 1_000).saturating_sub(id.0));
        let mut state = self.state();
        if let [(first, _), ..] = &reading.entries[..] {
            state.staleness = Some(age(first.id));
        }
        state.lag = match &reading.entries[..] {
            [.., (last, _)] if !reading.is_complete => age(last.id),
            _ => Duration::ZERO,
        };
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        lock(&self.shared.peers[self.peer])
    }
}

/// Returns the number of changes that apply: all but old ones of a region that joins.
fn count(batch: &Batch) -> u64 {
    let entries = batch.entries.iter();
    let changes = entries.flat_map(|entry| entry.changes.iter().map(|(field, _)| (entry.id, field)));
    changes.filter(|(id, field)| batch.next.applies(*id, field)).count() as u64
}

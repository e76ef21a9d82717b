//! The report of a replicator: about each peer, and about the outbox.

use std::time::Duration;

use tokio::time::Instant;

use super::local::KnownPeer;
use crate::error::Error;

/// The state of replication. Counters are those of this replicator since its start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// How many changes the last flush left in the outbox.
    pub outbox: u64,
    /// The error of the last flush, if it failed.
    pub error: Option<Error>,
    /// The peers, in the order of the settings.
    pub peers: Vec<PeerStatus>,
}

/// The state of the replication from a peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The name of the region.
    pub name: String,
    /// Up to which time of the own Redis this region knows all that the peer had sent, in µs since 1970. `None` if it was
    /// never heard of.
    pub heard_us: Option<u64>,
    /// The time since then.
    pub silent: Option<Duration>,
    /// Whether it is silent for longer than [`Replication::cut_off_after`](crate::regions::Replication::cut_off_after).
    pub is_cut_off: bool,
    /// The age of the oldest change of the last read that had any, by the clock of the peer at the end of the read.
    pub staleness: Option<Duration>,
    /// How far the last read stayed behind the stream: the age of its last entry if there were more, else 0.
    pub lag: Duration,
    /// Changes that were applied.
    pub applied: u64,
    /// Changes that were not applied because Redis rejected them: the key holds the state of another writer.
    pub failed: u64,
    /// Changes that tidegate does not write.
    pub skipped: u64,
    /// Applications without effect: another replicator was faster, or the read was too old.
    pub fenced: u64,
    /// How often entries were trimmed before this region read them.
    pub gaps: u64,
    /// How often the peer had lost its stream, or the end of it.
    pub rewound: u64,
    /// The error of the last step, if it failed.
    pub error: Option<Error>,
}

#[derive(Debug, Default)]
pub(super) struct FlusherState {
    pub(super) left: u64,
    pub(super) error: Option<Error>,
}

#[derive(Debug, Default)]
pub(super) struct PeerState {
    /// Whether this process has read what the own Redis knows of the peer.
    is_known: bool,
    /// A time of the own Redis, and when it was.
    heard: Option<(u64, Instant)>,
    pub(super) staleness: Option<Duration>,
    pub(super) lag: Duration,
    pub(super) applied: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    pub(super) fenced: u64,
    pub(super) gaps: u64,
    pub(super) rewound: u64,
    pub(super) error: Option<Error>,
}

impl PeerState {
    /// Notes the time that a replicator of this region has stored last.
    pub(super) fn note_stored(&mut self, before: &KnownPeer) {
        self.is_known = true;
        self.heard = before.heard_us.map(|heard_us| {
            let ago = Duration::from_micros(before.now_us.saturating_sub(heard_us));
            (heard_us, before.at.checked_sub(ago).unwrap_or(before.at))
        });
    }

    /// Notes that a read after this instant was applied, and reached the end of the stream.
    pub(super) fn note_heard(&mut self, before: &KnownPeer) {
        self.heard = Some((before.now_us, before.at));
    }

    /// Notes an application of changes, of which some failed.
    pub(super) fn note_applied(&mut self, changes: u64, failed: u64, skipped: u64) {
        self.applied += changes - failed.min(changes);
        self.failed += failed;
        self.skipped += skipped;
    }

    /// Returns the time of the own Redis at which the peer was cut off, if it is. A process that starts does not know yet.
    pub(super) fn cut_us(&self, cut_off_after: Duration) -> Option<u64> {
        let is_silent = self.heard.is_none_or(|(_, at)| at.elapsed() >= cut_off_after);
        let heard_us = self.heard.map_or(0, |(heard_us, _)| heard_us);
        (self.is_known && is_silent).then(|| heard_us + cut_off_after.as_micros() as u64)
    }

    pub(super) fn status(&self, name: &str, cut_off_after: Duration) -> PeerStatus {
        let silent = self.heard.map(|(_, at)| at.elapsed());
        PeerStatus {
            name: name.to_owned(),
            heard_us: self.heard.map(|(heard_us, _)| heard_us),
            silent,
            is_cut_off: silent.is_none_or(|silent| silent >= cut_off_after),
            staleness: self.staleness,
            lag: self.lag,
            applied: self.applied,
            failed: self.failed,
            skipped: self.skipped,
            fenced: self.fenced,
            gaps: self.gaps,
            rewound: self.rewound,
            error: self.error.clone(),
        }
    }
}

//! The notes of the jobs of a replicator, and its report.

use std::time::Duration;

use tokio::time::Instant;

use super::local::KnownPeer;
use crate::error::Error;
use crate::observe::replication::PeerStatus;

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

//! The replication of gates, as a process sees it: of each peer, and of the outbox.

use std::time::Duration;

use crate::error::Error;

/// The state of replication. Counters are those of this replicator since its start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// How many changes the last flush left in the outbox, or found there if it failed.
    pub outbox: u64,
    /// The error of the last flush, if it failed.
    pub error: Option<Error>,
    /// The peers, in the order of the settings.
    pub peers: Vec<PeerStatus>,
}

impl Status {
    /// Returns what keeps charges from other regions.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of_peer = |peer: &PeerStatus| {
            let is_cut_off = if peer.is_cut_off { " is cut off" } else { "" };
            match &peer.error {
                Some(error) => Some(format!("the region \"{}\"{is_cut_off}: {error}", peer.name)),
                None => peer.is_cut_off.then(|| format!("the region \"{}\" is cut off", peer.name)),
            }
        };
        let waits = self.error.iter().map(|error| format!("charges for other regions wait: {error}"));
        self.peers.iter().filter_map(of_peer).chain(waits).collect()
    }
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

//! The settings of replication, which all regions should share.

use std::time::Duration;

use crate::error::Error;
use crate::regions::replicator::BEAT;

/// How a limiter replicates its gates: see [`Builder::replication`](crate::Builder::replication). All regions should have the
/// same.
///
/// ```
/// use std::time::Duration;
/// use tidegate::regions::Replication;
///
/// let replication = Replication::default().flush_every(Duration::from_millis(20));
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Replication {
    pub(super) flush_every: Duration,
    pub(crate) cut_off_after: Duration,
    pub(super) retention: Duration,
    pub(super) max_entries: usize,
}

impl Default for Replication {
    fn default() -> Self {
        Self {
            flush_every: Duration::from_millis(50),
            cut_off_after: Duration::from_secs(2),
            retention: Duration::from_secs(3_600),
            max_entries: 100_000,
        }
    }
}

impl Replication {
    /// Sets the longest time for which charges of this process wait for others. A shorter time costs more messages, and gains
    /// little below the latency between the regions.
    ///
    /// Default: 50 ms.
    pub const fn flush_every(mut self, longest: Duration) -> Self {
        self.flush_every = longest;
        self
    }

    /// Sets the time without a reply after which a peer is cut off: see [`WhenCutOff`](super::WhenCutOff). At least 1 s, since
    /// an idle peer replies every 0.5 s.
    ///
    /// Default: 2 s.
    pub const fn cut_off_after(mut self, silence: Duration) -> Self {
        self.cut_off_after = silence;
        self
    }

    /// Sets for how long charges are kept for a peer that is away: at least the longest window or fill time of the replicated
    /// gates. Older charges are lost to that peer, which [counts a gap](super::replicator::PeerStatus::gaps). They are kept for this
    /// time also when all peers have read them: a region that loses its state reads those of named windows again. So the stream
    /// takes about 120 bytes for each key charged per second, times this.
    ///
    /// Default: an hour.
    pub const fn retention(mut self, longest: Duration) -> Self {
        self.retention = longest;
        self
    }

    /// Sets the most entries that are kept. An entry holds up to 128 charges of about 120 bytes.
    ///
    /// Default: 100,000.
    pub const fn max_entries(mut self, entries: usize) -> Self {
        self.max_entries = entries;
        self
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        match self.cut_off_after < 2 * BEAT {
            true => Err(Error::config(
                "`cut_off_after` must be at least 1 s: an idle peer replies every 0.5 s, and would count as cut off",
            )),
            false => Ok(()),
        }
    }
}

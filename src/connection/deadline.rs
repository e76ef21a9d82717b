//! The time limit of a call, and the events that a timed-out call was waiting for.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

pub(super) const ANSWER: &str = "Redis to answer";
pub(super) const CONNECTION: &str = "a connection";
#[cfg(feature = "cluster")]
pub(super) const NODE: &str = "the cluster to name a node that answers";

/// The time limit of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) after: Duration,
}

impl Deadline {
    pub(crate) fn new(after: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(after).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
        Self { at, after }
    }

    /// Returns the earlier of this deadline and a pause from now.
    #[cfg(feature = "cluster")]
    pub(super) fn within(self, pause: Duration) -> Self {
        Self { at: self.at.min(Instant::now() + pause), ..self }
    }

    pub(super) fn passed(self, waited_for: &'static str) -> Error {
        Error::timeout(waited_for, self.after)
    }
}

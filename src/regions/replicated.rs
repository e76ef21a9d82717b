//! What a gate needs to be replicated.

use std::sync::Arc;

use super::mode::{Mode, WhenCutOff};
use super::reference::gossip::Gossip;
use super::replicator::Replicator;
use super::script::Keys;
use crate::error::Error;
use crate::quota::Quota;

/// The mode of a gate, and the replicator that carries its charges.
#[derive(Clone, Debug)]
pub(crate) struct Replicated {
    pub(crate) gossip: Gossip,
    mode: Mode,
    replicator: Arc<Replicator>,
}

impl Replicated {
    pub(crate) fn new(quota: Quota, mode: Mode, replicator: &Arc<Replicator>) -> Result<Self, Error> {
        let gossip = mode.replicate(quota, replicator.regions())?;
        Ok(Self { gossip, mode, replicator: replicator.clone() })
    }

    /// Returns the same for another quota of the gate.
    pub(crate) fn with_quota(&self, quota: Quota) -> Result<Self, Error> {
        Self::new(quota, self.mode, &self.replicator)
    }

    pub(crate) fn keys(&self) -> &Keys {
        self.replicator.keys()
    }

    /// Returns the time of the cut that checks have to respect, in µs since 1970 by the clock of the own Redis.
    pub(crate) fn cut_us(&self) -> Option<u64> {
        match self.mode.policy() {
            WhenCutOff::Share => self.replicator.cut_us(),
            WhenCutOff::Own => None,
        }
    }

    /// Called after charges were added to the outbox.
    pub(crate) fn wake(&self) {
        self.replicator.wake();
    }
}

//! The mode of a gate: how its charges reach other regions, and what happens while they do not.

use crate::error::Error;
use crate::quota::Quota;
use crate::quota::algorithm::MAX_DEBT;
use crate::regions::reference::gossip::Gossip;

/// How a [replicated gate](crate::Gate::replicated) shares its limit with other regions.
///
/// There is no default mode: each errs in one direction while charges are on their way.
///
/// ```
/// use tidegate::regions::{Mode, WhenCutOff};
///
/// let mode = Mode::gossip().debt(2).when_cut_off(WhenCutOff::Own);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Mode {
    /// In limits; `None` for the default.
    debt: Option<u64>,
    when_cut_off: WhenCutOff,
}

/// The policy of a gate while a peer is [cut off](super::Replication::cut_off_after).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenCutOff {
    /// Each of R regions admits at most an R-th of the rate, by its own units since the cut: a second state, in which
    /// nothing is available at the time of the cut. Checks of a cost above an R-th of the limit are denied.
    #[default]
    Share,
    /// Each region goes on by the charges that it knows: R regions admit up to R times the rate, and repay it after the cut
    /// as far as the [debt](Mode::debt) goes.
    Own,
}

impl Mode {
    /// Gossip with debt: a region admits a check if the charges that it knows leave room.
    ///
    /// It may admit too much for a moment: at most what the R - 1 other regions admit until their charges arrive, after
    /// [`flush_every`](super::Replication::flush_every) and one to three times the latency. Late charges count in full, also
    /// above the limit, so that the surplus is repaid: in the long run, a bucket admits its rate, and a fixed window its limit.
    /// Sliding logs and counters have no debt beyond their window. [`regions`](super) states the bounds.
    ///
    /// Serves token buckets, leaky buckets, fixed windows by the clock, sliding logs and sliding counters.
    pub const fn gossip() -> Self {
        Self { debt: None, when_cut_off: WhenCutOff::Share }
    }

    /// Sets how far above the limit charges of other regions may raise the usage of a key, in limits. What is cut off is
    /// forgiven. A key with a debt of D limits is denied until it is repaid: for D windows, or D times the time in which
    /// the bucket fills. At least 1: without debt, R regions admit up to R times the rate.
    ///
    /// Default: R limits; of a fixed window 2(R - 1).
    pub const fn debt(mut self, limits: u64) -> Self {
        self.debt = Some(limits);
        self
    }

    /// Sets what the gate does while a peer is cut off.
    ///
    /// Default: [`WhenCutOff::Share`].
    pub const fn when_cut_off(mut self, policy: WhenCutOff) -> Self {
        self.when_cut_off = policy;
        self
    }

    /// Checks that regions can share this quota.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`]: see [`Gate::replicated`](crate::Gate::replicated).
    pub fn check_quota(self, quota: &Quota) -> Result<(), Error> {
        self.replicate(*quota, 2).map(drop)
    }

    pub(super) const fn policy(self) -> WhenCutOff {
        self.when_cut_off
    }

    /// Returns the replicated form of a quota of this many regions.
    pub(crate) fn replicate(self, quota: Quota, regions: u64) -> Result<Gossip, Error> {
        let gossip = Gossip::new(quota, regions)?;
        let debt = self.debt.map_or(gossip.debt, |limits| limits.saturating_mul(quota.limit()));
        match debt {
            0 => Err(Error::config(
                "without debt, late charges would be forgotten, and all regions together admit a multiple of the rate: use \
                 `debt(1)` or more",
            )),
            _ => Ok(Gossip { debt: debt.min(MAX_DEBT), ..gossip }),
        }
    }
}

//! The terms of an acquire, and its answer.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::batch::Share;
use crate::error::Error;
use crate::local::fallback::OnFailure;
use crate::permits::adaptive::AdaptiveKey;
use crate::quota::algorithm::{InFlight, Kind};
use crate::store::GateInfo;

/// What happens to the permits of a process whose lease lapsed, because the process or Redis was stopped for
/// longer than the [time to live](crate::Builder::permit_ttl) of its permits.
///
/// Meanwhile the store counts none of its permits, so other processes may have been given their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLapse {
    /// The process opens another lease and counts the units of its permits again, without a check. More units
    /// than the limit may then be held until enough are released.
    #[default]
    Restore,
    /// The units are lost: they are not counted again, and releasing the permit does nothing. The service
    /// stops its work when [`Permit::lapsed`](crate::Permit::lapsed) completes.
    Lost,
}

/// The terms on which units are acquired.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The gate with the quota of the acquire.
    pub(crate) gate: Arc<GateInfo>,
    /// The gate that decides: with the current limit when the message is made.
    pub(crate) decider: Arc<GateInfo>,
    /// The limit of the quota of the acquire.
    pub(crate) limit: u64,
    pub(crate) adaptive: Option<AdaptiveTerms>,
    /// At least 1.
    pub(crate) cost: u64,
    pub(crate) on_failure: OnFailure,
    pub(crate) on_lapse: OnLapse,
}

/// The adaptive limit that lowers the limit of an acquire.
#[derive(Clone)]
pub(crate) struct AdaptiveTerms {
    pub(crate) key: Arc<AdaptiveKey>,
    /// The limit of which the limit of the acquire is a part.
    pub(crate) whole: u64,
}

impl std::fmt::Debug for AdaptiveTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {}", self.key.limit(), self.whole)
    }
}

impl Terms {
    /// Returns `None` if the gate has no in-flight limit.
    pub(crate) fn new(
        gate: &Arc<GateInfo>,
        cost: u64,
        on_failure: OnFailure,
        on_lapse: OnLapse,
    ) -> Option<Self> {
        let Kind::InFlight(InFlight { limit }) = *gate.quota.kind() else { return None };
        let (gate, decider) = (gate.clone(), gate.clone());
        Some(Self { gate, decider, limit, adaptive: None, cost, on_failure, on_lapse })
    }

    /// Returns the current limit: the same part of the adaptive limit as of the whole one, and at least the
    /// cost, so that every acquire can be admitted when nothing else is held.
    pub(crate) fn current_limit(&self) -> u64 {
        let adapted = self.adaptive.as_ref().and_then(|AdaptiveTerms { key, whole }| {
            let part = u128::from(self.limit) * u128::from(key.limit()?) / u128::from((*whole).max(1));
            u64::try_from(part).ok()
        });
        adapted.map_or(self.limit, |part| part.max(self.cost).min(self.limit))
    }

    /// Has the current limit decide.
    pub(crate) fn adapted(mut self) -> Self {
        let quota = self.gate.quota.at_most(Some(self.current_limit()));
        if quota != self.decider.quota {
            self.decider = Arc::new(GateInfo { quota, ..GateInfo::clone(&self.gate) });
        }
        self
    }

    /// Tells the adaptive limit how many units were wanted, by the store's reply: `held` with the `k` admitted
    /// acquires, of which one more was denied or not.
    pub(crate) fn record_demand(&self, held: u64, k: u64, is_denied: bool) {
        if let Some(AdaptiveTerms { key, .. }) = &self.adaptive {
            let acquires = k.saturating_add(u64::from(is_denied));
            key.wanted(held.saturating_add(acquires.saturating_mul(self.cost)));
        }
    }

    /// Returns whether both can be acquires of one message.
    pub(super) fn merges_with(&self, other: &Self) -> bool {
        let whole = |terms: &Self| terms.adaptive.as_ref().map(|adaptive| adaptive.whole);
        self.cost == other.cost && self.gate.quota == other.gate.quota && whole(self) == whole(other)
    }
}

/// When the caller of an acquire gives up, in µs by the local clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimits {
    /// The time limit of the first decision.
    pub(crate) decide_by_us: u64,
    /// How long the caller waits to be admitted; `None` if it wants one decision.
    pub(crate) until_us: Option<u64>,
    /// The time limit of each message.
    pub(crate) deadline_us: u64,
}

/// A caller that waits for its answer.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: u64,
    pub(super) terms: Terms,
    pub(super) limits: TimeLimits,
    pub(super) answer: oneshot::Sender<Answer>,
}

impl Waiter {
    pub(super) const fn waits(&self) -> bool {
        self.limits.until_us.is_some()
    }

    /// Returns when the caller gives up. After a denial is known, a caller that waits does not wait for the
    /// time limit of a decision as well.
    pub(super) fn due_us(&self, has_denial: bool) -> u64 {
        match self.limits.until_us {
            Some(until_us) if has_denial => until_us,
            Some(until_us) => until_us.max(self.limits.decide_by_us),
            None => self.limits.decide_by_us,
        }
    }
}

/// The answer to an acquire. With a grant, the units are held until they are released.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The store decided.
    Decided {
        /// With the limit that decided.
        gate: Arc<GateInfo>,
        share: Share,
        grant: Option<Grant>,
        retry_us: u64,
    },
    /// The store did not decide, and the failure policy did.
    Undecided {
        policy: OnFailure,
        error: Error,
        grant: Option<Grant>,
        remaining: u64,
        retry_us: u64,
    },
    Failed(Error),
}

impl Answer {
    pub(super) const fn grant(&self) -> Option<Grant> {
        match self {
            Self::Decided { grant, .. } | Self::Undecided { grant, .. } => *grant,
            Self::Failed(_) => None,
        }
    }
}

/// Units that a permit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(super) units: u64,
    pub(super) on_lapse: OnLapse,
    /// The number of lapses before it.
    pub(super) lapses: u64,
    /// The store counts the units once it has answered more messages than this.
    pub(super) after_answers: u64,
}

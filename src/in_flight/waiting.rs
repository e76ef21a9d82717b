//! An acquire: its terms, its answer, and the wait for the answer, as its caller holds it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::adaptive::AdaptiveKey;
use super::driver;
use super::permit::UnitsGuard;
use super::pool::PoolState;
use super::registry::KeyEntry;
use crate::batch::Share;
use crate::error::{Error, QUEUE_ROOM};
use crate::local::on_failure::OnFailure;
use crate::observe::observer::Event;
use crate::quota::algorithm::{InFlight, Kind};
use crate::store::{GateInfo, Target};

/// Dropping it leaves the queue; units that were admitted meanwhile are released.
pub(crate) struct Waiting {
    inner: Arc<PoolState>,
    key: Arc<KeyEntry>,
    terms: AcquireTerms,
    id: u64,
    answer: oneshot::Receiver<AcquireAnswer>,
    is_answered: bool,
}

impl Waiting {
    /// Enqueues an acquire.
    pub(super) fn new(
        inner: &Arc<PoolState>,
        target: &Target,
        terms: AcquireTerms,
        limits: TimeLimits,
    ) -> Result<Self, Error> {
        let (sender, answer) = oneshot::channel();
        let now_us = inner.clock.local_us();
        let entered = inner.registry.change(target, inner.holder(target.hash_tag), |state| {
            if state.is_full() {
                return None;
            }
            let id = state.new_id();
            state.enqueue(Waiter { id, terms: terms.clone(), limits, answer: sender }, now_us);
            Some(id)
        });
        let Some((key, Some(id))) = entered else {
            return Err(Error::timeout(QUEUE_ROOM, inner.deadline));
        };
        driver::wake(inner, &key);
        inner.events.notify(&Event::PermitsWaiting { gate: &terms.gate.name, change: 1 });
        Ok(Self { inner: inner.clone(), key, terms, id, answer, is_answered: false })
    }

    /// Waits for the answer. May be called again if the future was dropped, until it returns.
    pub(crate) async fn answer(&mut self) -> (AcquireAnswer, Option<UnitsGuard>) {
        let answer =
            (&mut self.answer).await.unwrap_or_else(|_| AcquireAnswer::Failed(Error::runtime_ended()));
        self.is_answered = true;
        // The time of what the failure policy admitted says nothing about the limit.
        let adaptive =
            self.terms.adaptive.as_ref().filter(|_| matches!(answer, AcquireAnswer::Decided { .. }));
        let gate = &self.terms.gate;
        let held = answer.grant().map(|grant| {
            let operation = adaptive.map(|adaptive| adaptive.key.begin(grant.units));
            UnitsGuard::new(&self.inner, &self.key, gate, grant, operation)
        });
        (answer, held)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.inner.events.notify(&Event::PermitsWaiting { gate: &self.terms.gate.name, change: -1 });
        if self.is_answered {
            return;
        }
        driver::change(&self.inner, &self.key, |state, now_us| {
            // Answers are sent while the state is locked, so none arrives from here on.
            match self.answer.try_recv() {
                Ok(answer) => {
                    if let Some(grant) = answer.grant() {
                        state.release(&grant, now_us, None);
                    }
                }
                Err(_) => state.leave(self.id, now_us),
            }
        });
    }
}

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
pub(crate) struct AcquireTerms {
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

impl AcquireTerms {
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
    pub(super) terms: AcquireTerms,
    pub(super) limits: TimeLimits,
    pub(super) answer: oneshot::Sender<AcquireAnswer>,
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
pub(crate) enum AcquireAnswer {
    /// The store decided.
    Decided {
        /// With the limit that decided.
        gate: Arc<GateInfo>,
        share: Share,
        grant: Option<PermitGrant>,
        retry_us: u64,
    },
    /// The store did not decide, and the failure policy did.
    Undecided {
        policy: OnFailure,
        error: Error,
        grant: Option<PermitGrant>,
        remaining: u64,
        retry_us: u64,
    },
    Failed(Error),
}

impl AcquireAnswer {
    pub(super) const fn grant(&self) -> Option<PermitGrant> {
        match self {
            Self::Decided { grant, .. } | Self::Undecided { grant, .. } => *grant,
            Self::Failed(_) => None,
        }
    }
}

/// Units that a permit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitGrant {
    pub(super) units: u64,
    pub(super) on_lapse: OnLapse,
    /// The number of lapses before it.
    pub(super) lapses: u64,
    /// The store counts the units once it has answered more messages than this.
    pub(super) after_answers: u64,
}

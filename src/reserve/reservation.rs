//! Reservations that the process that made them settles.

use std::sync::Arc;

use crate::decision::Decision;
use crate::error::Error;
use crate::key::as_key::AsKey;
use crate::limiter::check::Check;
use crate::limiter::gate::Gate;
use crate::local::fallback::ReconcileStamp;

/// Units taken by [`Gate::reserve`](crate::Gate::reserve) or [`Check::reserve`], to be settled when their final number is known.
///
/// Dropped without a commit or a cancel, they stay charged.
///
/// [`Limiter::reserve`](crate::Limiter::reserve) makes a [`HeldReservation`](crate::HeldReservation), which any process can
/// settle, and which ends by itself.
///
/// Units that this process admitted while Redis was unavailable ([`Source::Local`](crate::Source::Local)) are
/// settled like all others: in this process until they are reconciled with Redis, then in Redis.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use tidegate::{Limiter, Quota, Rate};
///
/// let tokens = Limiter::in_memory().gate("llm.tokens", Quota::token_bucket(1_000, Rate::per_minute(1_000)));
/// let reservation = tokens.reserve("tenant:7", 400).await?;
/// if reservation.decision().is_allowed() {
///     // … the answer turned out to cost 120
///     reservation.commit(120).await?;
/// }
/// assert_eq!(tokens.peek("tenant:7").await?.remaining(), 880);
/// # Ok(()) }
/// ```
#[must_use = "dropped without commit or cancel, the units stay charged"]
#[derive(Debug)]
pub struct Reservation {
    /// With the settings that decided, also if an operator overrides them since.
    check: Check,
    decision: Decision,
    /// Set for units that the fallback admitted.
    stamp: Option<ReconcileStamp>,
}

/// # Reservations that this process settles
impl Gate {
    /// Takes `cost` units whose final number is known later: [`commit`](Reservation::commit) charges the
    /// final number, [`cancel`](Reservation::cancel) returns all units.
    ///
    /// This form costs no more than a check, and only this process can settle it. For several gates in one step,
    /// for a settle by another process or after a restart, or for units that return by themselves if no process
    /// settles them, use [`Limiter::reserve`](crate::Limiter::reserve).
    ///
    /// # Errors
    ///
    /// As [`check_cost`](Self::check_cost).
    pub async fn reserve(&self, key: impl AsKey, cost: u64) -> Result<Reservation, Error> {
        self.key(key).cost(cost).reserve().await
    }
}

impl Check {
    /// Takes the units of the check, whose final number is known later: [`commit`](Reservation::commit) charges
    /// the final number, [`cancel`](Reservation::cancel) returns all units.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn reserve(self) -> Result<Reservation, Error> {
        let mut check = self;
        Self::follow(std::slice::from_mut(&mut check)).await;
        if check.request.gate.charges_used {
            // The units are taken before they are used.
            Arc::make_mut(check.request.gate.to_mut()).charges_used = false;
        }
        let decision = check.decide().await?;
        Ok(Reservation::new(check, decision))
    }
}

impl Reservation {
    /// Takes over the units that this decision on the check charged. Call
    /// [`Check::effective`](crate::Check::effective) before the check is decided.
    pub fn new(check: Check, decision: Decision) -> Self {
        let stamp = check.pipeline.stamp_of_charge(&check.request, &decision);
        Self { check, decision, stamp }
    }

    /// Returns the check that was decided.
    pub const fn check(&self) -> &Check {
        &self.check
    }

    /// Returns the decision. If it is a denial, no units are reserved.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Charges `actual` units in total: gives the rest back, or charges the difference whatever the state, with the debt
    /// [capped](crate::Builder::debt_cap). If
    /// the reservation was denied, or admitted without a charge ([`Source::Open`](crate::Source::Open)), charges
    /// `actual`. If its gate was [switched](crate::Control::switch) open or closed, charges nothing.
    ///
    /// If Redis does not answer, more units than were reserved are charged to this process's share of the quota, and to Redis
    /// when it answers again.
    ///
    /// # Errors
    ///
    /// As [`Gate::refund`](crate::Gate::refund): then the reserved units stay charged.
    pub async fn commit(self, actual: u64) -> Result<(), Error> {
        self.settle(actual).await
    }

    /// Gives all units back that still count.
    ///
    /// # Errors
    ///
    /// As [`Gate::refund`](crate::Gate::refund): then the units stay charged.
    pub async fn cancel(self) -> Result<(), Error> {
        self.settle(0).await
    }

    /// Returns the units that were charged for it, by the store or by the fallback.
    #[must_use]
    pub fn charged_units(&self) -> u64 {
        self.check.units_charged_by(&self.decision)
    }

    async fn settle(&self, actual: u64) -> Result<(), Error> {
        let Check { pipeline, request } = &self.check;
        pipeline.settle_charge(request, &self.decision, self.stamp.as_ref(), actual).await
    }
}

//! Units taken before their true number is known.

use crate::algorithm::MOST_DEBT;
use crate::ask::Ask;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::store::Write;

/// Units taken by [`Gate::reserve`](crate::Gate::reserve), to be settled when
/// their true number is known.
///
/// Dropped without either, they stay charged: who vanishes has paid.
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
    pub(crate) ask: Ask,
    decision: Decision,
}

impl Reservation {
    pub(crate) fn new(ask: Ask, decision: Decision) -> Self {
        Self { ask, decision }
    }

    /// Whether the units were there. If not, nothing is held.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Charges what it really was: gives the rest back, or charges the
    /// difference without asking. Where the reservation was denied, or was never
    /// charged because Redis could not be asked, charges `actual`; where its gate was
    /// [switched](crate::Control::switch) open or closed, nothing.
    ///
    /// # Errors
    ///
    /// As [`Gate::refund`](crate::Gate::refund): then what was reserved stays
    /// charged.
    pub async fn commit(self, actual: u64) -> Result<(), Error> {
        let held = self.held();
        if self.decision.source() == Source::Switch {
            return Ok(());
        }
        if actual > held {
            let units = (actual - held).min(MOST_DEBT);
            self.ask.gate.core.write(self.ask.as_ref(), Write::Penalize { units }).await
        } else {
            self.give_back(held - actual).await
        }
    }

    /// Gives everything back, as far as it still counts.
    ///
    /// # Errors
    ///
    /// As [`Gate::refund`](crate::Gate::refund): then it stays charged.
    pub async fn cancel(self) -> Result<(), Error> {
        self.give_back(self.held()).await
    }

    /// Units that the store has charged for it.
    pub(crate) fn held(&self) -> u64 {
        let is_charged = matches!(self.decision.source(), Source::Redis | Source::Memory | Source::Lease);
        // What only watches lets pass what it would deny.
        let is_admitted = self.decision.is_allowed() && !self.decision.is_shadow();
        if is_charged && is_admitted { self.ask.cost } else { 0 }
    }

    async fn give_back(&self, units: u64) -> Result<(), Error> {
        if units == 0 {
            return Ok(());
        }
        let stamp_us = Some(self.decision.server_now_us());
        self.ask.gate.core.write(self.ask.as_ref(), Write::Refund { units, stamp_us }).await
    }
}

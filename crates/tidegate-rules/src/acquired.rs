//! The decision of rules on a request, with the permits of rules in flight.

use tidegate::Permits;

use super::decision::RulesDecision;

/// The result of [`RulesLimiter::acquire`](super::RulesLimiter::acquire).
///
/// Dropping it releases the permits: [`into_parts`](Self::into_parts) returns them.
#[must_use = "dropping it releases the permits of the request"]
#[derive(Debug)]
pub struct RulesAcquired {
    decision: RulesDecision,
    permits: Permits,
}

impl RulesAcquired {
    pub(super) const fn new(decision: RulesDecision, permits: Permits) -> Self {
        Self { decision, permits }
    }

    /// Returns the decision.
    pub const fn decision(&self) -> &RulesDecision {
        &self.decision
    }

    /// Returns whether the request may pass: see [`RulesDecision::is_allowed`].
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns the decision, and the permits to hold while the request is in progress. The permits hold nothing
    /// if the request is denied, or if no rule in flight matches it.
    pub fn into_parts(self) -> (RulesDecision, Permits) {
        (self.decision, self.permits)
    }
}

//! The result of taking as many units as are available.

use std::fmt;

use crate::decision::Decision;

/// The result of [`Gate::take_up_to`](crate::Gate::take_up_to): of n equal checks, the number that was admitted and
/// charged, and the decision on all of them together.
///
/// The decision is allowed if at least one check was granted; for n = 0, which is a peek, if one would be. Its values
/// are those after the grant: [`remaining`](Decision::remaining), [`reset_after`](Decision::reset_after),
/// [`retry_after`](Decision::retry_after), which is the time until one more check would be granted, and
/// [`delay`](Decision::delay), which at a leaky bucket is the time until the turn of the last granted check.
///
/// [`Limiter::take_up_to`](crate::Limiter::take_up_to) returns it with an [`AllDecision`](crate::AllDecision).
#[must_use = "a grant that nobody looks at limits nothing"]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Grant<D = Decision> {
    granted: u64,
    wanted: u64,
    decision: D,
}

impl<D> Grant<D> {
    /// Makes the grant of `granted` of the `wanted` checks. For crates that combine grants.
    pub const fn new(granted: u64, wanted: u64, decision: D) -> Self {
        Self { granted, wanted, decision }
    }

    /// Returns how many of the [`wanted`](Self::wanted) checks were granted, each with the cost of one check: 0 to all.
    #[must_use]
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns how many checks the caller wanted: the n that it passed.
    #[must_use]
    pub const fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Returns whether all wanted checks were granted.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.granted == self.wanted
    }

    /// Returns the decision on all checks together.
    pub const fn decision(&self) -> &D {
        &self.decision
    }

    /// Returns the decision of [`decision`](Self::decision).
    pub fn into_decision(self) -> D {
        self.decision
    }
}

/// Displays `3 of 8 granted: allowed, 0 of 5 left`, for example.
impl<D: fmt::Display> fmt::Display for Grant<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} granted: {}", self.granted, self.wanted, self.decision)
    }
}

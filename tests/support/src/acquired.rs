//! Reads the results of acquires. Only tests ask whether they were admitted: a service takes the permit.

use tidegate::Acquired;

pub trait AcquiredParts<P, D>: Sized {
    fn decision(&self) -> &D;

    fn is_allowed(&self) -> bool;

    /// Returns the decision, and the permit if admitted.
    fn into_parts(self) -> (D, Option<P>);

    /// Returns the permit; `None` if denied.
    fn permit(self) -> Option<P> {
        self.into_parts().1
    }
}

impl<P, D> AcquiredParts<P, D> for Acquired<P, D> {
    fn decision(&self) -> &D {
        let (Self::Admitted(_, decision) | Self::Denied(decision)) = self;
        decision
    }

    fn is_allowed(&self) -> bool {
        matches!(self, Self::Admitted(..))
    }

    fn into_parts(self) -> (D, Option<P>) {
        match self {
            Self::Admitted(permit, decision) => (decision, Some(permit)),
            Self::Denied(decision) => (decision, None),
        }
    }
}

//! The result of settling a hold.

use std::fmt;

/// The result of a [commit](crate::Limiter::commit) or a [cancel](crate::Limiter::cancel) for one check of a
/// reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Settlement {
    /// The hold was open. The check is now charged its actual units.
    Settled,
    /// The hold had ended. If its units were refunded ([`Reserve::back`](crate::Reserve::back)), the actual units are
    /// charged now, without a check. If they stayed charged, only those above the estimate are.
    Late,
    /// No hold was open, so nothing was changed: it was settled before, it ended, it was lost with the state of
    /// Redis, or the check held nothing.
    Nothing,
    /// Redis did not answer in time. This process settles the hold in the background until Redis answers, for twice its
    /// [ttl](crate::Reserve::ttl).
    Queued,
}

impl Settlement {
    /// All settlements.
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 4] = [Self::Settled, Self::Late, Self::Nothing, Self::Queued];

    /// Returns the label for metrics and texts, such as `settled`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Late => "late",
            Self::Nothing => "nothing",
            Self::Queued => "queued",
        }
    }
}

impl fmt::Display for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

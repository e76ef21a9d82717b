//! Why there is no response.

use std::fmt;

use crate::decision::Decision;
use crate::error::Error;

/// Why a request that an [`OutgoingLayer`](super::OutgoingLayer) let wait has no response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OutgoingError<E> {
    /// It would have had to wait longer than it may. Nothing was sent; `retry_after` of the decision says
    /// when it can.
    Limited(Decision),
    /// There is no decision: see [`OnFailure`](crate::OnFailure). Nothing was sent.
    Undecided(Error),
    /// The request has no key: its URL names no host, or the key that was set yields none. Nothing was
    /// sent.
    NoKey,
    /// The client's own error.
    Client(E),
}

impl OutgoingError<std::convert::Infallible> {
    pub(super) fn widened<E>(self) -> OutgoingError<E> {
        match self {
            Self::Limited(decision) => OutgoingError::Limited(decision),
            Self::Undecided(error) => OutgoingError::Undecided(error),
            Self::NoKey => OutgoingError::NoKey,
            Self::Client(never) => match never {},
        }
    }
}

impl<E: fmt::Display> fmt::Display for OutgoingError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(decision) => write!(
                f,
                "not sent: the limit \"{}\" would let it pass in {:?}, which is longer than it may wait",
                decision.gate(),
                decision.retry_after()
            ),
            Self::Undecided(error) => write!(f, "not sent: {error}"),
            Self::NoKey => f.write_str("not sent: the request names no host to count it for; set a key"),
            Self::Client(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for OutgoingError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Undecided(error) => Some(error),
            Self::Client(error) => error.source(),
            Self::Limited(_) | Self::NoKey => None,
        }
    }
}

//! The error of an outgoing request.

use std::fmt;

use tidegate::{Decision, Error};

/// The reason why a request through an [`OutgoingLayer`](super::OutgoingLayer) has no response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OutgoingError<E> {
    /// The request would have to wait longer than [`max_wait`](super::OutgoingLayer::max_wait). It was not
    /// sent. The decision's `retry_after` is the time until it can be admitted.
    Limited(Decision),
    /// The limiter could not decide: see [`OnFailure`](tidegate::OnFailure). The request was not sent.
    Failed(Error),
    /// The request has no key: its URL names no host, or the configured key yields none. It was not sent.
    NoKey,
    /// The inner client failed.
    Client(E),
}

impl OutgoingError<std::convert::Infallible> {
    pub(super) fn with_client_error<E>(self) -> OutgoingError<E> {
        match self {
            Self::Limited(decision) => OutgoingError::Limited(decision),
            Self::Failed(error) => OutgoingError::Failed(error),
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
                "not sent: the limit \"{}\" would admit the request in {:?}, which is longer than max_wait",
                decision.gate(),
                decision.retry_after()
            ),
            Self::Failed(error) => write!(f, "not sent: {error}"),
            Self::NoKey => f.write_str(
                "not sent: the request has no key: name a host in its URL, or set OutgoingLayer::key",
            ),
            Self::Client(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for OutgoingError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Client(error) => error.source(),
            Self::Limited(_) | Self::NoKey => None,
        }
    }
}

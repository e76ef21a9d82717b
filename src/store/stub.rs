//! Stores without state, for tests of the code around a limiter.

use super::take::Outcome;
use crate::connection::Deadline;
use crate::error::Error;

/// The result of every check of a [`Limiter::stub`](crate::Limiter::stub), regardless of its gates'
/// [`OnFailure`](crate::OnFailure). The variants that allow or deny accept every refund, penalty, block and
/// reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stub {
    /// Admits every check; the source is `open`.
    Allow,
    /// Denies every check; the source is `closed`.
    Deny,
    /// Fails every check with an error that is [unavailable](Error::is_unavailable).
    Fail,
    /// Answers no check before its deadline.
    Hang,
}

impl Stub {
    /// Returns whether every check is admitted or denied; `None` if every check fails.
    pub(super) const fn fixed_decision(self) -> Option<bool> {
        match self {
            Self::Allow => Some(true),
            Self::Deny => Some(false),
            Self::Fail | Self::Hang => None,
        }
    }

    /// Fails each of the groups, also if there is a fixed decision: the caller then applies it in place of
    /// the failure policy.
    pub(super) async fn take(self, groups: usize, deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        let error = match self {
            Self::Hang => hang(deadline).await,
            Self::Allow | Self::Deny | Self::Fail => failing(),
        };
        vec![Err(error); groups]
    }

    /// Returns this reply to a call other than a take, or fails it.
    pub(super) async fn reply<T>(self, reply: T, deadline: Deadline) -> Result<T, Error> {
        match self {
            Self::Allow | Self::Deny => Ok(reply),
            Self::Fail => Err(failing()),
            Self::Hang => Err(hang(deadline).await),
        }
    }
}

async fn hang(deadline: Deadline) -> Error {
    tokio::time::sleep_until(deadline.at).await;
    Error::timeout("a store that hangs (Stub::Hang)", deadline.after)
}

fn failing() -> Error {
    Error::unavailable("this store always fails (Stub::Fail)")
}

//! What a caller gets: its share of an outcome, and the future of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::store::Outcome;

/// The result that a caller receives.
pub(super) type Reply = Result<Share, Error>;

/// One caller's part in the outcome of a group: the caller was the `index`-th (from 0) of `n`.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) outcome: Outcome,
    pub(crate) n: u64,
    pub(crate) index: u64,
    /// This process's clock when the call was sent.
    pub(crate) sent_us: u64,
}

/// A check that was started. Of small size and depth, since the types of services around a check
/// contain it.
pub(crate) enum Taking<'a> {
    Waits(oneshot::Receiver<Reply>),
    Boxed(BoxFuture<'a, Reply>),
}

impl Future for Taking<'_> {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        match &mut *self {
            Self::Waits(answer) => {
                let answer = Pin::new(answer).poll(context);
                answer.map(|answer| answer.unwrap_or_else(|_| Err(Error::runtime_ended())))
            }
            Self::Boxed(taking) => taking.as_mut().poll(context),
        }
    }
}

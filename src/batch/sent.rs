//! A batch in flight: its callers, and its call to the store.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use futures_util::future::{self, BoxFuture};
use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::dispatchers::Lateness;
use super::queue::{Caller, Merged};
use crate::error::Error;
use crate::store::{Group, Outcome};

/// The batch that a dispatcher has in flight. Callers whose deadline passes meanwhile are in it.
///
/// The call is stored here instead of in the dispatcher's task: a blocked runtime does not poll its tasks,
/// and then the reaper polls the call.
#[derive(Default)]
pub(super) struct SentBatch {
    batch: Mutex<Vec<Merged>>,
    call: Mutex<Option<SentCall>>,
    dispatcher: AtomicWaker,
}

/// A call to the store.
pub(super) struct SentCall {
    pub(super) reply: BoxFuture<'static, (Vec<Result<Outcome, Error>>, u64)>,
    /// What it sends, one of each entry of the batch.
    pub(super) groups: Arc<[Group]>,
    pub(super) began_us: u64,
}

impl SentBatch {
    /// Locks the batch: after the call, and before a queue.
    pub(super) fn batch(&self) -> MutexGuard<'_, Vec<Merged>> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn call(&self) -> MutexGuard<'_, Option<SentCall>> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Merged::expire`].
    pub(super) fn expire(&self, now: Instant, late: &mut Vec<Caller>) -> Option<Instant> {
        self.batch().iter_mut().filter_map(|merged| merged.expire(now, late)).min()
    }

    pub(super) fn is_late(&self, late: Lateness) -> bool {
        self.call().as_ref().is_some_and(|call| !late.is_in_time(call.began_us))
    }

    /// Polls the call if it is late. The `waker` replaces the dispatcher's, until that polls again.
    pub(super) fn help(&self, late: Lateness, waker: &Waker) {
        // The dispatcher may have begun another call meanwhile. That one is not late.
        let is_late = |call: &SentCall| !late.is_in_time(call.began_us);
        if self.poll(is_late, &mut Context::from_waker(waker)).is_ready() {
            self.dispatcher.wake();
        }
    }

    pub(super) async fn reply(&self) {
        future::poll_fn(|context| {
            self.dispatcher.register(context.waker());
            self.poll(|_| true, context)
        })
        .await;
    }

    /// Polls the call if it is the `wanted` one, and shares out its reply.
    fn poll(&self, wanted: impl Fn(&SentCall) -> bool, context: &mut Context<'_>) -> Poll<()> {
        let mut guard = self.call();
        let Some(call) = guard.as_mut().filter(|call| wanted(call)) else { return Poll::Ready(()) };
        let (outcomes, sent_us) = ready!(call.reply.as_mut().poll(context));
        // Before there is no call: then the dispatcher sends the batch that it finds here.
        let batch = std::mem::take(&mut *self.batch());
        *guard = None;
        drop(guard);
        for (merged, outcome) in batch.into_iter().zip(outcomes) {
            merged.share_out(outcome, sent_us);
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for SentBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentBatch").field("batch", &self.batch).finish_non_exhaustive()
    }
}

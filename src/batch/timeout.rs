//! Every place in which a check can time out:
//!
//! 1. While it waits for room in a full shard: by its caller's timer, in [`room`].
//! 2. While it is enqueued or in a batch in flight: by the reaper, in [`reap`]. Where the system provides no
//!    thread for the reaper: by its caller's timer, in [`in_time`].
//! 3. While its call waits for Redis: by the connection, in [`Store::take`](crate::store::Store::take), at
//!    the deadline of the call. A direct send has its caller's deadline. A dispatcher's call has the last
//!    deadline of its callers.
//!
//! In each case the caller gets [`Error::timeout`], and the failure policy (stage 7) decides. A check that timed
//! out in flight may have been charged.
//!
//! A round of the reaper also takes over from dispatchers that their runtimes do not poll.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use tokio::sync::{SemaphorePermit, oneshot};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

use super::destination::Shard;
use super::dispatcher::Dispatcher;
use super::dispatchers::Lateness;
use super::reaper::Thread;
use super::{BatchInner, CheckReply, Taking};
use crate::connection::Deadline;
use crate::error::{Error, QUEUE_ROOM};

/// Waits for room in a full shard. Callers get room in FIFO order, before newcomers do. A cancelled caller
/// leaves its room to the next.
pub(super) fn room(
    shard: &Shard,
    deadline: Deadline,
) -> impl Future<Output = Result<Option<SemaphorePermit<'_>>, Error>> {
    // Releases room for thousands of callers at once. Under tokio's budget each turn of a task would poll
    // all of its woken callers, and let only 128 of them continue.
    let room = tokio::time::timeout_at(deadline.at, unconstrained(shard.room.acquire()));
    room.map(move |room| room.map(Result::ok).map_err(|_| full(deadline)))
}

pub(super) fn full(deadline: Deadline) -> Error {
    Error::timeout(QUEUE_ROOM, deadline.after)
}

/// Ensures that a caller that has just enqueued is notified at its deadline: by the reaper, or by a timer if
/// there is no reaper.
pub(super) fn in_time(
    shared: &Arc<BatchInner>,
    answered: oneshot::Receiver<CheckReply>,
    due_us: u64,
    deadline: Deadline,
) -> Taking<'_> {
    let taking = Taking::Waits(answered);
    let start = || {
        let shared = Arc::downgrade(shared);
        Thread::start(|thread| run(shared, thread))
    };
    if shared.reaper.watch(due_us, start) {
        return taking;
    }
    Taking::Boxed(Box::pin(async move {
        let in_time = tokio::time::timeout_at(deadline.at, taking).await;
        in_time.unwrap_or_else(|_| Err(late(shared, deadline)))
    }))
}

fn late(shared: &BatchInner, deadline: Deadline) -> Error {
    Error::timeout(shared.store.waited_for(), deadline.after)
}

/// The reaper: runs one round after the other until the batch is dropped.
async fn run(shared: Weak<BatchInner>, thread: Thread) {
    let round = |shared: Arc<BatchInner>| {
        shared.reaper.look(|now, next_round| reap(&shared, now, next_round, &thread))
    };
    while let Some(due) = shared.upgrade().map(round) {
        thread.sleep(due).await;
    }
}

/// Runs one round of the reaper: notifies callers whose deadline has passed, and takes over from
/// dispatchers that their runtimes do not poll. Returns the next deadline, at most `next_round`; `None`
/// if nothing waits.
fn reap(shared: &Arc<BatchInner>, now: Instant, next_round: Instant, thread: &Thread) -> Option<Instant> {
    let late = |deadline| Err(late(shared, deadline));
    let now_us = shared.reaper.micros(now);
    let stalled = Lateness::stalled(now_us, shared.reaper.stall, shared.longest);
    let mut due: Option<Instant> = None;
    let mut note = |at: Option<Instant>| due = due.into_iter().chain(at).min();
    for (number, destination) in shared.destinations.iter().enumerate() {
        for in_flight in destination.dispatchers.in_flight() {
            note(in_flight.expire(now, late));
            if in_flight.is_late(stalled) {
                // Polls the call now and whenever it makes progress. In a task, since a panic of an observer
                // must not end this thread.
                let waker = thread.waker();
                thread.spawn(async move { in_flight.help(stalled, &waker) });
            }
        }
        let mut is_queued = false;
        for shard in &destination.shards {
            let (due, is_empty) = shard.free(|queue| (queue.expire(now, late), queue.is_empty()));
            note(due);
            is_queued |= !is_empty;
        }
        if is_queued {
            note(Some(next_round));
            if let Some((id, in_flight)) = destination.dispatchers.start(0, stalled) {
                thread.spawn(Dispatcher::new(shared.clone(), number, id, in_flight).on_reaper());
            }
        }
    }
    due.map(|due| due.min(next_round))
}

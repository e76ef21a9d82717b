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
use super::queue::Caller;
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
        in_time.unwrap_or_else(|_| Err(Error::timeout(shared.store.waited_for(), deadline.after)))
    }))
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
    let mut late = Vec::new();
    let now_us = shared.reaper.micros(now);
    let stalled = Lateness::stalled(now_us, shared.reaper.stall, shared.longest);
    let mut due: Option<Instant> = None;
    let mut note = |at: Option<Instant>| due = due.into_iter().chain(at).min();
    for (number, destination) in shared.destinations.iter().enumerate() {
        for in_flight in destination.dispatchers.in_flight() {
            note(in_flight.expire(now, &mut late));
            if in_flight.is_late(stalled) {
                // Polls the call now and whenever it makes progress. In a task, since a panic of an observer
                // must not end this thread.
                let waker = thread.waker();
                thread.spawn(async move { in_flight.help(stalled, &waker) });
            }
        }
        let mut is_queued = false;
        for shard in &destination.shards {
            let (due, is_empty) = shard.free(|queue| (queue.expire(now, &mut late), queue.is_empty()));
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
    // Wakes thousands of callers at once, so not under a lock.
    if !late.is_empty() {
        let waited_for = shared.store.waited_for();
        for Caller { answer, deadline } in late {
            let _ = answer.send(Err(Error::timeout(waited_for, deadline.after)));
        }
    }
    due.map(|due| due.min(next_round))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use super::*;
    use crate::batch::{Batch, Together};
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::observe::observer::EventSink;
    use crate::quota::Quota;
    use crate::runtime::clock::Clock;
    use crate::store::{GateInfo, Group, GroupItem, Store, Target};

    const MINUTE: Duration = Duration::from_secs(60);

    /// Looks for locks when it is woken.
    struct Woken {
        batch: Batch,
        found_lock: AtomicBool,
    }

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            let start = Instant::now();
            let shards = self.batch.0.destinations.iter().flat_map(|destination| &destination.shards);
            for shard in shards {
                // The batch's own reaper locks them for a moment.
                while shard.is_locked() && !self.found_lock.load(Ordering::Relaxed) {
                    self.found_lock.store(start.elapsed() > Duration::from_secs(2), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Runs on a runtime of one thread, so no dispatcher runs.
    #[tokio::test]
    async fn late_callers_are_woken_without_the_lock_of_their_shard() {
        let store = Arc::new(Store::memory(Clock::System, 16));
        let batch = Batch::new(store, Clock::System, EventSink::new(None), MINUTE, Together::All);
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let quota = Quota::fixed_window(1_000, MINUTE);
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
        let woken = Arc::new(Woken { batch: batch.clone(), found_lock: AtomicBool::new(false) });
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let start = || {
            let item = GroupItem::new(Target::new(&gate, b"key", None), 1);
            batch.take(Group::of_one(item), Deadline::new(MINUTE))
        };
        let started = (0..100).map(|_| start());
        let (mut waiting, _direct): (Vec<_>, Vec<_>) =
            started.partition(|taking| matches!(taking, Taking::Waits(_)));
        assert!(waiting.len() > 50);
        for taking in &mut waiting {
            assert!(Pin::new(taking).poll(&mut context).is_pending());
        }
        let thread = Thread::start(|_| std::future::pending::<()>()).unwrap();
        let now = Instant::now() + 2 * MINUTE;
        reap(&batch.0, now, now + MINUTE, &thread);
        assert!(!woken.found_lock.load(Ordering::Relaxed));
        for taking in waiting {
            assert!(taking.await.unwrap_err().is_timeout());
        }
    }
}

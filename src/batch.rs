//! Batching: checks that are made while calls are in flight are sent together, equal checks merged into one
//! take of n.
//!
//! If nothing is in flight, a caller sends its own check at once: no timer, no other task. Otherwise checks
//! are enqueued, and dispatchers send them, a few calls at a time. A dispatcher is a task, so a caller that
//! is no longer polled delays no other caller.

mod destination;
mod dispatcher;
mod dispatchers;
mod lateness;
mod limits;
mod queue;
mod reaper;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{SemaphorePermit, oneshot};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

use self::destination::Destination;
use self::dispatcher::Dispatcher;
use self::dispatchers::DirectSend;
use self::lateness::Lateness;
use self::limits::Limits;
use self::queue::{Caller, Reply, keyed_hash};
use self::reaper::{Reaper, Thread};
use crate::clock::Clock;
use crate::connection::Deadline;
use crate::error::{Error, QUEUE_ROOM};
use crate::key::HASH_TAGS;
use crate::observer::Observer;
use crate::sharded_arc;
use crate::store::{Group, MAX_WORK, Outcome, Store};

/// Redis runs one call after the other. A second call in flight is there when Redis has finished the
/// first; more calls would only be smaller. More shards than cores that contend would gain nothing
/// either.
const OF_ONE_REDIS: Limits =
    Limits { shards: 4, direct_sends: 4, dispatchers: 2, second_call: 16, capacity: 65_536 / 4 };
/// The same for threads that each drive a runtime. Such a runtime is not polled while its owner does other
/// work, which delays its dispatcher's checks. So these should be only the checks of its own thread.
const OF_A_THREAD: Limits = Limits { shards: 1, ..OF_ONE_REDIS };
const THREADS: usize = 4;
/// The same for each hash tag of a cluster, which has separate calls.
const OF_A_HASH_TAG: Limits =
    Limits { shards: 1, direct_sends: 1, dispatchers: 1, second_call: 0, capacity: 65_536 / HASH_TAGS };

/// At the latest after this time, the reaper takes over from a dispatcher that has not finished its
/// call: its runtime may be blocked.
const LONGEST_STALL: Duration = Duration::from_millis(500);

/// Which checks travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    Nothing,
    All,
    /// Those of one hash tag of a cluster.
    EachHashTag,
}

/// One caller's part in the outcome of a group: the caller was the `index`-th (from 0) of `n`.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) outcome: Outcome,
    pub(crate) n: u64,
    pub(crate) index: u64,
    /// This process's clock when the call was sent.
    pub(crate) sent_us: u64,
}

#[derive(Clone)]
pub(crate) struct Batch(Arc<BatchInner>);

struct BatchInner {
    store: Arc<Store>,
    clock: Clock,
    observer: Option<Arc<dyn Observer>>,
    /// The limiter's deadline. A check with a longer one is sent directly, so that no call delays
    /// others for longer than this.
    longest: Duration,
    together: Together,
    /// In a cluster one for each hash tag, so that a lost node delays its own checks alone. Otherwise
    /// one for threads that share a runtime, and the rest for threads that each drive one.
    destinations: Vec<Destination>,
    reaper: Reaper,
}

impl Batch {
    pub(crate) fn new(
        store: Arc<Store>,
        clock: Clock,
        observer: Option<Arc<dyn Observer>>,
        longest: Duration,
        together: Together,
    ) -> Self {
        let destinations = match together {
            Together::Nothing => Vec::new(),
            Together::All => {
                let of_threads = (0..THREADS).map(|_| Destination::new(OF_A_THREAD));
                std::iter::once(Destination::new(OF_ONE_REDIS)).chain(of_threads).collect()
            }
            Together::EachHashTag => (0..HASH_TAGS).map(|_| Destination::new(OF_A_HASH_TAG)).collect(),
        };
        let reaper = Reaper::new((longest / 4).min(LONGEST_STALL));
        Self(Arc::new(BatchInner { store, clock, observer, longest, together, destinations, reaper }))
    }

    /// Starts a check of one group at once and returns its result when awaited. While it waits, the
    /// caller's future holds little more than the slot for the result.
    pub(crate) fn take(&self, group: Group, deadline: Deadline) -> Taking<'_> {
        let shared = &self.0;
        if shared.together == Together::Nothing || deadline.after > shared.longest {
            return Taking::Boxed(Box::pin(shared.send_directly(group, deadline, None)));
        }
        let thread = sharded_arc::number();
        let destination = match shared.together {
            Together::EachHashTag => group.hash_tag().index(),
            _ if sharded_arc::drives_a_runtime() => 1 + thread % THREADS,
            _ => 0,
        };
        let shard = thread % shared.destinations[destination].shards.len();
        match shared.join((destination, shard), group, deadline, None) {
            Joined::Direct(group, permit) => {
                Taking::Boxed(Box::pin(shared.send_directly(group, deadline, Some(permit))))
            }
            Joined::Waits(taking) => taking,
            Joined::Full(group) => {
                Taking::Boxed(Box::pin(shared.wait_for_room((destination, shard), group, deadline)))
            }
        }
    }

    /// Returns the result of each group, in their order.
    pub(crate) async fn take_each(
        &self,
        groups: Vec<Group>,
        deadline: Deadline,
    ) -> Vec<Result<Share, Error>> {
        let mut shares = Vec::with_capacity(groups.len());
        let mut rest = &groups[..];
        while !rest.is_empty() {
            let (call, after) = rest.split_at(next_call(rest));
            // Boxed, as in `Taking`.
            let (outcomes, sent_us) = Box::pin(self.0.call(call, call.len(), deadline)).await;
            let shared = call.iter().zip(outcomes).map(|(group, outcome)| {
                outcome.map(|outcome| Share { outcome, n: group.n, index: 0, sent_us })
            });
            shares.extend(shared);
            rest = after;
        }
        shares
    }
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

/// The result of an attempt to enqueue.
enum Joined<'a> {
    /// Nothing is in flight: the caller sends its check.
    Direct(Group, DirectSend<'a>),
    Waits(Taking<'a>),
    Full(Group),
}

impl BatchInner {
    /// Enqueues a check, or has its caller send it. `room` is what the caller waited for.
    fn join(
        self: &Arc<Self>,
        (number, shard): (usize, usize),
        group: Group,
        deadline: Deadline,
        room: Option<SemaphorePermit<'_>>,
    ) -> Joined<'_> {
        let keyed_hash = keyed_hash(&group);
        // Does as little as possible under the lock, which the threads of one shard share.
        let (answer, answered) = oneshot::channel();
        let destination = &self.destinations[number];
        let shard = &destination.shards[shard];
        let mut queue = shard.lock();
        if queue.is_empty()
            && let Some(permit) = destination.dispatchers.direct_send()
        {
            return Joined::Direct(group, permit);
        }
        let Some(room) = room.or_else(|| shard.room.try_acquire().ok()) else {
            return Joined::Full(group);
        };
        // The queue gives it back when the check leaves.
        room.forget();
        let merged = queue.push(group, keyed_hash, Caller { answer, deadline });
        let (waiting, _) = queue.waiting();
        drop(queue);
        drop(merged);
        let due_us = self.reaper.micros(deadline.at);
        let is_watched = self.reaper.watch(self, due_us);
        let lateness = Lateness::at(due_us, deadline.after, self.longest);
        if let Some((id, in_flight)) = destination.dispatchers.start(waiting, lateness) {
            tokio::spawn(Dispatcher::new(self.clone(), number, id, in_flight).run());
        }
        Joined::Waits(self.in_time(Taking::Waits(answered), is_watched, deadline))
    }

    /// Enqueues as soon as there is room. Callers get room in FIFO order, before newcomers do. A cancelled
    /// caller leaves its room to the next.
    async fn wait_for_room(
        self: &Arc<Self>,
        (destination, shard): (usize, usize),
        group: Group,
        deadline: Deadline,
    ) -> Reply {
        let full = || Error::timeout(QUEUE_ROOM, deadline.after);
        // Releases room for thousands of callers at once. Under tokio's budget each turn of a task would poll
        // all of its woken callers, and let only 128 of them continue.
        let room = unconstrained(self.destinations[destination].shards[shard].room.acquire());
        let room = tokio::time::timeout_at(deadline.at, room).await.map_err(|_| full())?;
        match self.join((destination, shard), group, deadline, room.ok()) {
            Joined::Direct(group, permit) => self.send_directly(group, deadline, Some(permit)).await,
            Joined::Waits(taking) => taking.await,
            // Only a closed semaphore gives no room, and nothing closes it.
            Joined::Full(_) => Err(full()),
        }
    }

    /// Adds a timer if there is no reaper.
    fn in_time<'a>(&'a self, taking: Taking<'a>, is_watched: bool, deadline: Deadline) -> Taking<'a> {
        if is_watched {
            return taking;
        }
        Taking::Boxed(Box::pin(async move {
            let in_time = tokio::time::timeout_at(deadline.at, taking).await;
            in_time.unwrap_or_else(|_| Err(self.late(deadline)))
        }))
    }

    fn late(&self, deadline: Deadline) -> Error {
        Error::timeout(self.store.waited_for(), deadline.after)
    }

    /// Runs one round of the reaper: notifies callers whose deadline has passed, and takes over from
    /// dispatchers that their runtimes do not poll. Returns the next deadline, at most `next_round`; `None`
    /// if nothing waits.
    fn reap(self: &Arc<Self>, now: Instant, next_round: Instant, thread: &Thread) -> Option<Instant> {
        let late = |deadline| Err(self.late(deadline));
        let now_us = self.reaper.micros(now);
        let stalled = Lateness::stalled(now_us, self.reaper.stall, self.longest);
        let mut due: Option<Instant> = None;
        let mut note = |at: Option<Instant>| due = due.into_iter().chain(at).min();
        for (number, destination) in self.destinations.iter().enumerate() {
            for in_flight in destination.dispatchers.in_flight() {
                note(in_flight.expire(now, late));
                if in_flight.is_late(stalled) {
                    thread.help(in_flight, stalled);
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
                    thread.spawn(Dispatcher::new(self.clone(), number, id, in_flight).on_reaper());
                }
            }
        }
        due.map(|due| due.min(next_round))
    }

    async fn send_directly(
        &self,
        group: Group,
        deadline: Deadline,
        _permit: Option<DirectSend<'_>>,
    ) -> Reply {
        let (mut outcomes, sent_us) = self.call(std::slice::from_ref(&group), 1, deadline).await;
        let outcome = outcomes.pop().unwrap_or_else(|| Err(Error::unavailable("no reply")));
        outcome.map(|outcome| Share { outcome, n: group.n, index: 0, sent_us })
    }

    async fn call(
        &self,
        groups: &[Group],
        checks: usize,
        deadline: Deadline,
    ) -> (Vec<Result<Outcome, Error>>, u64) {
        let sent_us = self.clock.local_us();
        let outcomes = self.store.take(groups, deadline).await;
        if let Some(observer) = &self.observer {
            let took = self.clock.local_us().saturating_sub(sent_us);
            observer.called(checks, groups.len(), Duration::from_micros(took));
        }
        (outcomes, sent_us)
    }
}

/// Returns how many of the groups go into the next call: at least one.
fn next_call(groups: &[Group]) -> usize {
    let mut work = 0;
    let fitting = groups.iter().take_while(|group| {
        work += group.work();
        work <= MAX_WORK
    });
    fitting.count().max(1)
}

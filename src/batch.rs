//! Batching: checks that are made while calls are in flight are sent together, equal checks merged into one
//! take of n.
//!
//! If nothing is in flight, a caller sends its own check at once: no timer, no other task. Otherwise checks
//! are enqueued, and dispatchers send them, a few calls at a time. A dispatcher is a task, so a caller that
//! is no longer polled delays no other caller.
//!
//! The path of a check:
//!
//! 1. [`Batch::take`] selects its [`destination`] and shard.
//! 2. [`Batch::join`] has the caller send it if [`dispatchers`] permits a direct send. Otherwise it enqueues
//!    the check in the shard's [`queue`], and starts a dispatcher if there are too few.
//! 3. The [`dispatcher`] pops a batch, and sends it with [`BatchInner::call`].
//! 4. The [`sent`] batch distributes the outcomes to the callers.
//! 5. If a deadline passes, [`timeout`] notifies the caller, on the thread of the [`reaper`].

mod destination;
mod dispatcher;
mod dispatchers;
mod queue;
mod reaper;
mod sent;
mod timeout;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{SemaphorePermit, oneshot};
use tokio::time::{Instant, sleep_until};

use self::destination::Destination;
pub(crate) use self::destination::Together;
use self::dispatcher::Dispatcher;
use self::dispatchers::{DirectSend, Lateness};
use self::queue::{Caller, keyed_hash};
use self::reaper::Reaper;
use crate::connection::Deadline;
use crate::error::Error;
use crate::observe::observer::{Event, EventKey, EventSink};
use crate::runtime::clock::Clock;
use crate::runtime::sharded_arc;
use crate::store::{Group, MAX_WORK, Outcome, Store};

/// The pauses before a group is sent again whose keys are on two nodes. They double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

#[derive(Clone)]
pub(crate) struct Batch(Arc<BatchInner>);

/// The result of an attempt to enqueue.
enum Joined<'a> {
    /// Nothing is in flight: the caller sends its check.
    Direct(Group, DirectSend<'a>),
    Waits(Taking<'a>),
    Full(Group),
}

impl Batch {
    pub(crate) fn new(
        store: Arc<Store>,
        clock: Clock,
        events: EventSink,
        longest: Duration,
        together: Together,
    ) -> Self {
        let destinations = together.destinations();
        let reaper = Reaper::new(longest);
        Self(Arc::new(BatchInner { store, clock, events, longest, together, destinations, reaper }))
    }

    /// Starts a check of one group at once and returns its result when awaited. While it waits, the
    /// caller's future holds little more than the slot for the result.
    ///
    /// While a cluster moves the slot of the group, its keys can be on two nodes. Then it is sent again until the
    /// deadline, alone, so that it delays no other group.
    pub(crate) fn take(&self, group: Group, deadline: Deadline) -> Taking<'_> {
        // Only a cluster has several nodes, and without batching this may be one.
        if self.0.together == Together::All || !group.has_several_keys() {
            return self.take_once(group, deadline);
        }
        let first = self.take_once(group.clone(), deadline);
        Taking::Boxed(Box::pin(self.take_when_together(first, group, deadline)))
    }

    async fn take_when_together(&self, first: Taking<'_>, group: Group, deadline: Deadline) -> CheckReply {
        let (mut reply, mut pause) = (first.await, FIRST_PAUSE);
        while reply.as_ref().is_err_and(Error::is_of_keys_apart) {
            let ends = Instant::now() + pause;
            if ends >= deadline.at {
                break;
            }
            sleep_until(ends).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
            reply = self.send_directly(group.clone(), deadline, None).await;
        }
        reply
    }

    fn take_once(&self, group: Group, deadline: Deadline) -> Taking<'_> {
        let shared = &self.0;
        if shared.together == Together::Nothing || deadline.after > shared.longest {
            return Taking::Boxed(Box::pin(self.send_directly(group, deadline, None)));
        }
        let thread = sharded_arc::number();
        let destination = shared.together.destination_of(&group, thread);
        let shard = thread % shared.destinations[destination].shards.len();
        match self.join((destination, shard), group, deadline, None) {
            Joined::Direct(group, permit) => {
                Taking::Boxed(Box::pin(self.send_directly(group, deadline, Some(permit))))
            }
            Joined::Waits(taking) => taking,
            Joined::Full(group) => {
                Taking::Boxed(Box::pin(self.wait_for_room((destination, shard), group, deadline)))
            }
        }
    }

    /// Enqueues a check, or has its caller send it. `room` is what the caller waited for.
    fn join(
        &self,
        (number, shard): (usize, usize),
        group: Group,
        deadline: Deadline,
        room: Option<SemaphorePermit<'_>>,
    ) -> Joined<'_> {
        let shared = &self.0;
        let keyed_hash = keyed_hash(&group);
        // Does as little as possible under the lock, which the threads of one shard share.
        let (answer, answered) = oneshot::channel();
        let destination = &shared.destinations[number];
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
        let due_us = shared.reaper.micros(deadline.at);
        let taking = timeout::in_time(shared, answered, due_us, deadline);
        let lateness = Lateness::at(due_us, deadline.after, shared.longest);
        if let Some((id, in_flight)) = destination.dispatchers.start(waiting, lateness) {
            tokio::spawn(Dispatcher::new(shared.clone(), number, id, in_flight).run());
        }
        Joined::Waits(taking)
    }

    /// Enqueues as soon as there is room.
    async fn wait_for_room(
        &self,
        (destination, shard): (usize, usize),
        group: Group,
        deadline: Deadline,
    ) -> CheckReply {
        let room = timeout::room(&self.0.destinations[destination].shards[shard], deadline).await?;
        match self.join((destination, shard), group, deadline, room) {
            Joined::Direct(group, permit) => self.send_directly(group, deadline, Some(permit)).await,
            Joined::Waits(taking) => taking.await,
            // Only a closed semaphore gives no room, and nothing closes it.
            Joined::Full(_) => Err(timeout::full(deadline)),
        }
    }

    /// Returns the result at once if the store is this process's memory, which waits for nothing.
    #[inline]
    pub(crate) fn take_in_memory(&self, group: &Group) -> Option<CheckReply> {
        let shared = &*self.0;
        let Store::Memory(store) = &*shared.store else { return None };
        // Only an observer reads it: denials of this store are not cached.
        let sent_us = if shared.events.is_observed() { shared.clock.local_us() } else { 0 };
        let outcome = store.take_one(group);
        shared.notify_called(std::slice::from_ref(group), 1, sent_us, std::slice::from_ref(&outcome));
        Some(outcome.map(|outcome| Share { outcome, n: group.n, index: 0, sent_us }))
    }

    async fn send_directly(
        &self,
        group: Group,
        deadline: Deadline,
        _permit: Option<DirectSend<'_>>,
    ) -> CheckReply {
        let (mut outcomes, sent_us) = self.0.call(std::slice::from_ref(&group), 1, deadline).await;
        let outcome = outcomes.pop().unwrap_or_else(|| Err(Error::unavailable("no reply")));
        outcome.map(|outcome| Share { outcome, n: group.n, index: 0, sent_us })
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

/// Returns how many of the groups go into the next call: at least one.
fn next_call(groups: &[Group]) -> usize {
    let mut work = 0;
    let fitting = groups.iter().take_while(|group| {
        work += group.work();
        work <= MAX_WORK
    });
    fitting.count().max(1)
}

// The state that callers, dispatchers and the reaper share, and the call to the store.

struct BatchInner {
    store: Arc<Store>,
    clock: Clock,
    events: EventSink,
    /// The limiter's deadline. A check with a longer one is sent directly, so that no call delays
    /// others for longer than this.
    longest: Duration,
    together: Together,
    destinations: Vec<Destination>,
    reaper: Reaper,
}

impl BatchInner {
    /// Sends one call, and notifies the observer. Returns the outcomes, and this process's clock when the
    /// call was sent.
    async fn call(
        &self,
        groups: &[Group],
        checks: usize,
        deadline: Deadline,
    ) -> (Vec<Result<Outcome, Error>>, u64) {
        let sent_us = self.clock.local_us();
        let outcomes = self.store.take(groups, deadline).await;
        self.notify_called(groups, checks, sent_us, &outcomes);
        (outcomes, sent_us)
    }

    #[inline]
    fn notify_called(
        &self,
        groups: &[Group],
        checks: usize,
        sent_us: u64,
        outcomes: &[Result<Outcome, Error>],
    ) {
        if self.events.is_observed() {
            let took = Duration::from_micros(self.clock.local_us().saturating_sub(sent_us));
            self.events.notify(&Event::Called { checks, groups: groups.len(), took });
            self.notify_bans(groups, outcomes);
        }
    }

    fn notify_bans(&self, groups: &[Group], outcomes: &[Result<Outcome, Error>]) {
        for (group, outcome) in groups.iter().zip(outcomes) {
            for ban in outcome.iter().flat_map(|outcome| &outcome.bans) {
                let target = &group.items[ban.item].target;
                let (gate, key) = (&target.gate.name, EventKey(&target.redis_key));
                let lasts = Duration::from_micros(ban.lasts_us);
                self.events.notify(&Event::Banned { gate, key, lasts });
            }
        }
    }
}

// What a caller gets: its share of an outcome, and the future of it.

/// The result that a caller receives.
type CheckReply = Result<Share, Error>;

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
    Waits(oneshot::Receiver<CheckReply>),
    Boxed(BoxFuture<'a, CheckReply>),
}

impl Future for Taking<'_> {
    type Output = CheckReply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CheckReply> {
        match &mut *self {
            Self::Waits(answer) => {
                let answer = Pin::new(answer).poll(context);
                answer.map(|answer| answer.unwrap_or_else(|_| Err(Error::runtime_ended())))
            }
            Self::Boxed(taking) => taking.as_mut().poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::Quota;
    use crate::store::{GateInfo, GroupItem, Target};

    const MINUTE: Duration = Duration::from_secs(60);

    /// Runs on a runtime of one thread, so no dispatcher runs before this test awaits.
    #[tokio::test]
    async fn shard_holds_no_more_callers_than_its_capacity() {
        let store = Arc::new(Store::memory(Clock::System, 16));
        let batch = Batch::new(store, Clock::System, EventSink::new(None), MINUTE, Together::All);
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let quota = Quota::fixed_window(1 << 40, MINUTE);
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
        let start = || {
            let item = GroupItem::new(Target::new(&gate, b"key", None), 1);
            batch.take(Group::of_one(item), Deadline::new(MINUTE))
        };
        let waiting =
            || batch.0.destinations.iter().map(|destination| destination.waiting().0).sum::<usize>();
        let started: Vec<_> = (0..20_000).map(|_| start()).collect();
        assert_eq!(waiting(), 16_384);
        for taking in started {
            let share = taking.await.unwrap();
            assert!(share.index < share.outcome.k, "admitted");
        }
        assert_eq!(waiting(), 0);
    }
}

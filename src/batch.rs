//! Asks of many callers, one call: what is asked while calls are under way is
//! gathered and goes out together, equal asks as one take of n.
//!
//! With nothing under way the caller sends by itself, at once: no timer, no
//! other task. Otherwise asks line up, and tasks of our own send them, a few
//! calls at a time, so that a caller who stops polling holds nobody up.

mod place;
mod queue;
mod sender;
mod watch;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::place::{Alone, Place, Slow};
use self::queue::{Caller, Told, fingerprint};
use self::sender::Sender;
use self::watch::Watch;
use crate::clock::Clock;
use crate::connection::Deadline;
use crate::error::{Error, ITS_TURN};
use crate::key::PLACES;
use crate::observer::Observer;
use crate::per_thread;
use crate::store::{Group, MOST_WORK, Outcome, Store};

/// Redis does one call after the other: a second one at a time is there when it is done with the first,
/// and more would only be smaller. More lines than cores that hold each other up would gain nothing
/// either.
const OF_ONE_REDIS: Most = Most { lines: 4, alone: 4, senders: 2, another: 16, waiting: 65_536 / 4 };
/// The same for threads that each drive a runtime: one that stands still, as its owner turns to
/// something else, holds up what its sender has, and so should have nothing of the others.
const OF_A_THREAD: Most = Most { lines: 1, ..OF_ONE_REDIS };
const THREADS: usize = 4;
/// The same for each place of a cluster, whose calls are their own.
const OF_A_PLACE: Most = Most { lines: 1, alone: 1, senders: 1, another: 0, waiting: 65_536 / PLACES };

#[derive(Clone, Copy, Debug)]
struct Most {
    /// Of threads that ask at the same time, each finds a line of its own.
    lines: usize,
    /// Callers who send by themselves at a time.
    alone: usize,
    /// Tasks that send what lines up.
    senders: usize,
    /// So many asks in a line are worth a call of their own while another is under way. Fewer are sent
    /// with what comes until that returns.
    another: usize,
    /// More than this many do not line up: a caller who finds them waits for room
    /// first, which keeps nothing but the caller.
    waiting: usize,
}

/// What goes out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    Nothing,
    All,
    /// What lies in one place of a cluster.
    EachPlace,
}

/// One caller's part in what became of a group: it asked as the `index`-th
/// (from 0) of `n`.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) outcome: Outcome,
    pub(crate) n: u64,
    pub(crate) index: u64,
    /// This process's clock when it was sent.
    pub(crate) sent_us: u64,
}

#[derive(Clone)]
pub(crate) struct Batch(Arc<Shared>);

struct Shared {
    store: Arc<Store>,
    clock: Clock,
    observer: Option<Arc<dyn Observer>>,
    /// Who may wait longer than this goes alone, so that a call that is never
    /// answered holds no others up for longer.
    longest: Duration,
    together: Together,
    /// Of a cluster by the place of what is asked: a node that is away holds up its own alone. Else one
    /// for threads that share a runtime, and then those for threads that each drive one.
    places: Vec<Place>,
    watch: Watch,
}

impl Batch {
    pub(crate) fn new(
        store: Arc<Store>,
        clock: Clock,
        observer: Option<Arc<dyn Observer>>,
        longest: Duration,
        together: Together,
    ) -> Self {
        let places = match together {
            Together::Nothing => Vec::new(),
            Together::All => {
                let of_threads = (0..THREADS).map(|_| Place::new(OF_A_THREAD));
                std::iter::once(Place::new(OF_ONE_REDIS)).chain(of_threads).collect()
            }
            Together::EachPlace => (0..PLACES).map(|_| Place::new(OF_A_PLACE)).collect(),
        };
        let watch = Watch::new();
        Self(Arc::new(Shared { store, clock, observer, longest, together, places, watch }))
    }

    /// What became of one group, which is asked for at once: whoever waits carries
    /// no more than the place where the answer comes.
    pub(crate) fn take(&self, group: Group, deadline: Deadline) -> Taking<'_> {
        let shared = &self.0;
        if shared.together == Together::Nothing || deadline.after > shared.longest {
            return Taking::Boxed(Box::pin(shared.take_alone(group, deadline, None)));
        }
        let thread = per_thread::number();
        let place = match shared.together {
            Together::EachPlace => group.place().index(),
            _ if per_thread::drives_a_runtime() => 1 + thread % THREADS,
            _ => 0,
        };
        let line = thread % shared.places[place].lines.len();
        match shared.join((place, line), group, deadline) {
            Joined::Alone(group, alone) => {
                Taking::Boxed(Box::pin(shared.take_alone(group, deadline, Some(alone))))
            }
            Joined::Waits(taking) => taking,
            Joined::Full(group) => {
                Taking::Boxed(Box::pin(shared.wait_for_room((place, line), group, deadline)))
            }
        }
    }

    /// What became of each group, in their order.
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

/// An ask that was made. Of small size and depth, since the types of services around a check hold it.
pub(crate) enum Taking<'a> {
    Waits(oneshot::Receiver<Told>),
    Boxed(BoxFuture<'a, Told>),
}

impl Future for Taking<'_> {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Told> {
        match &mut *self {
            Self::Waits(answer) => {
                let answer = Pin::new(answer).poll(context);
                answer.map(|answer| answer.unwrap_or_else(|_| Err(Error::runtime_ended())))
            }
            Self::Boxed(taking) => taking.as_mut().poll(context),
        }
    }
}

/// What became of an ask that would join the line.
enum Joined<'a> {
    /// Nobody is there: its caller sends it.
    Alone(Group, Alone<'a>),
    Waits(Taking<'a>),
    Full(Group),
}

impl Shared {
    fn join(
        self: &Arc<Self>,
        (number, line): (usize, usize),
        group: Group,
        deadline: Deadline,
    ) -> Joined<'_> {
        let fingerprint = fingerprint(&group);
        // As little as can be is done under the lock, which threads of one line share.
        let (answer, answered) = oneshot::channel();
        let place = &self.places[number];
        let mut queue = place.lines[line].lock();
        if queue.is_empty()
            && let Some(alone) = place.alone()
        {
            return Joined::Alone(group, alone);
        }
        if queue.is_full(place.most.waiting) {
            return Joined::Full(group);
        }
        let merged = queue.push(group, fingerprint, Caller { answer, deadline });
        let (waiting, _) = queue.waiting();
        drop(queue);
        drop(merged);
        let due_us = self.watch.micros(deadline.at);
        let is_watched = self.watch.over(self, due_us);
        let slow = Slow::at(due_us, deadline.after, self.longest);
        if let Some((sender, flight)) = place.new_sender(waiting, slow) {
            tokio::spawn(Sender::new(self.clone(), number, sender, flight).run());
        }
        Joined::Waits(self.in_time(Taking::Waits(answered), is_watched, deadline))
    }

    /// One caller after the other, each telling the next.
    async fn wait_for_room(
        self: &Arc<Self>,
        (place, line): (usize, usize),
        mut group: Group,
        deadline: Deadline,
    ) -> Told {
        let room = &self.places[place].lines[line].room;
        loop {
            let is_told = room.notified();
            match self.join((place, line), group, deadline) {
                Joined::Alone(group, alone) => {
                    room.notify_one();
                    return self.take_alone(group, deadline, Some(alone)).await;
                }
                Joined::Waits(taking) => {
                    room.notify_one();
                    return taking.await;
                }
                Joined::Full(back) => group = back,
            }
            if tokio::time::timeout_at(deadline.at, is_told).await.is_err() {
                return Err(Error::timeout(ITS_TURN, deadline.after));
            }
        }
    }

    /// With a timer of its own where nobody watches over it.
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

    /// Tells those whose deadline has passed. When the next is due, if anybody waits.
    fn tell_late(&self, now: Instant) -> Option<Instant> {
        let late = |deadline| Err(self.late(deadline));
        let mut due: Option<Instant> = None;
        let mut see = |next: Option<Instant>| due = due.into_iter().chain(next).min();
        for place in &self.places {
            place.lines.iter().for_each(|line| see(line.lock().tell_late(now, late)));
            place.flights().iter().for_each(|flight| see(flight.tell_late(now, late)));
        }
        due
    }

    async fn take_alone(&self, group: Group, deadline: Deadline, _alone: Option<Alone<'_>>) -> Told {
        let (mut outcomes, sent_us) = self.call(std::slice::from_ref(&group), 1, deadline).await;
        let outcome = outcomes.pop().unwrap_or_else(|| Err(Error::unavailable("no reply")));
        outcome.map(|outcome| Share { outcome, n: group.n, index: 0, sent_us })
    }

    async fn call(
        &self,
        groups: &[Group],
        asks: usize,
        deadline: Deadline,
    ) -> (Vec<Result<Outcome, Error>>, u64) {
        let sent_us = self.clock.local_us();
        let outcomes = self.store.take(groups, deadline).await;
        if let Some(observer) = &self.observer {
            let took = self.clock.local_us().saturating_sub(sent_us);
            observer.called(asks, groups.len(), Duration::from_micros(took));
        }
        (outcomes, sent_us)
    }
}

/// How many of the groups go into the next call: at least one.
fn next_call(groups: &[Group]) -> usize {
    let mut work = 0;
    let fitting = groups.iter().take_while(|group| {
        work += group.work();
        work <= MOST_WORK
    });
    fitting.count().max(1)
}

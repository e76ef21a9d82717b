//! The queues of waiting requests: a state machine without a lock, a task or a clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::denial::Denial;
use super::queue_name::QueueName;

/// A bounded number of wait permits, and one queue for each key with waiting requests.
///
/// If all permits are taken, a longest queue yields: its newest request loses its permit to a newcomer, as
/// long as the newcomer's queue does not become the longer one of the two. So keys share the permits fairly,
/// and a key that needs fewer than its share gets all it needs.
///
/// `S` signals a request. The methods return signals, which the caller sends after it has released its lock.
pub(super) struct KeyQueues<S> {
    permits: usize,
    requests: usize,
    next_ticket: u64,
    queues: HashMap<QueueName, KeyQueue<S>>,
    /// The queues by their length, for the longest.
    by_length: BTreeSet<(usize, QueueName)>,
}

/// The requests that wait for one key.
pub(super) struct KeyQueue<S> {
    /// By ticket, that is, in the order of arrival.
    requests: BTreeMap<u64, Request<S>>,
    /// The ticket of the request that makes checks. It stays the head if an earlier request moves here.
    head: u64,
    /// The sum of the costs of `requests`.
    units: u128,
    /// The units admitted from this queue since `denial`.
    admitted_units: u128,
    /// Of all requests that ever joined.
    smallest_cost: u64,
    /// The latest denial of a head.
    denial: Option<Arc<Denial>>,
}

struct Request<S> {
    cost: u64,
    /// `None` for the head, which has been signaled or needs no signal.
    signal: Option<S>,
}

/// The position of a new request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Joined<S> {
    pub(super) ticket: u64,
    pub(super) is_head: bool,
    /// The signal of the request that lost its permit to this one.
    pub(super) displaced: Option<S>,
}

impl<S> KeyQueues<S> {
    pub(super) fn new(permits: usize) -> Self {
        Self { permits, requests: 0, next_ticket: 0, queues: HashMap::new(), by_length: BTreeSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    pub(super) fn get(&self, name: &QueueName) -> Option<&KeyQueue<S>> {
        self.queues.get(name)
    }

    /// Returns whether [`join`](Self::join) would succeed.
    pub(super) fn has_permit(&self, name: &QueueName) -> bool {
        let longest = self.by_length.last().map_or(0, |(length, _)| *length);
        self.requests < self.permits || longest > self.length(name) + 1
    }

    /// Adds a request to the end of a queue. Returns `None` if all permits are taken and no queue is longer
    /// than this one would become.
    pub(super) fn join(&mut self, name: &QueueName, cost: u64, signal: S) -> Option<Joined<S>> {
        if !self.has_permit(name) {
            return None;
        }
        let displaced = if self.requests < self.permits { None } else { self.displace() };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let is_head = self.insert(name, ticket, Request { cost, signal: Some(signal) });
        Some(Joined { ticket, is_head, displaced })
    }

    /// Removes a request, if it is still in this queue. Returns the signal of the next head if the request
    /// was the head.
    pub(super) fn leave(&mut self, name: &QueueName, ticket: u64, is_admitted: bool) -> Option<S> {
        let cost = self.remove(name, ticket)?.cost;
        let queue = self.queues.get_mut(name)?;
        if is_admitted {
            queue.admitted_units += u128::from(cost);
        }
        if queue.head != ticket {
            return None;
        }
        let (&next, request) = queue.requests.iter_mut().next()?;
        queue.head = next;
        request.signal.take()
    }

    /// Moves a request to another queue, to its place by arrival, except that the head there stays the head.
    /// Returns whether it is the head there, and the signal of the next head of its old queue.
    pub(super) fn move_to(
        &mut self,
        from: &QueueName,
        ticket: u64,
        to: &QueueName,
        cost: u64,
        signal: S,
    ) -> (bool, Option<S>) {
        let next = self.leave(from, ticket, false);
        (self.insert(to, ticket, Request { cost, signal: Some(signal) }), next)
    }

    /// Records that the head of this queue was denied.
    pub(super) fn record_denial(&mut self, name: &QueueName, denial: Arc<Denial>) {
        if let Some(queue) = self.queues.get_mut(name) {
            (queue.denial, queue.admitted_units) = (Some(denial), 0);
        }
    }

    /// Returns the numbers of requests and queues.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        assert_eq!(self.by_length.len(), self.queues.len());
        (self.requests, self.queues.len())
    }

    fn length(&self, name: &QueueName) -> usize {
        self.queues.get(name).map_or(0, |queue| queue.requests.len())
    }

    /// Removes the newest request of a longest queue, which has at least two. Its head stays.
    fn displace(&mut self) -> Option<S> {
        let (_, name) = self.by_length.last()?.clone();
        let queue = self.queues.get(&name)?;
        let newest = *queue.requests.keys().rev().find(|ticket| **ticket != queue.head)?;
        self.remove(&name, newest)?.signal
    }

    /// Returns whether the request is the head.
    fn insert(&mut self, name: &QueueName, ticket: u64, request: Request<S>) -> bool {
        let queue = self.queues.entry(name.clone()).or_insert_with(|| KeyQueue::new(ticket));
        let is_head = queue.head == ticket;
        queue.units += u128::from(request.cost);
        queue.smallest_cost = queue.smallest_cost.min(request.cost);
        let request = if is_head { Request { signal: None, ..request } } else { request };
        queue.requests.insert(ticket, request);
        let length = queue.requests.len();
        self.requests += 1;
        self.by_length.remove(&(length - 1, name.clone()));
        self.by_length.insert((length, name.clone()));
        is_head
    }

    /// Removes a request, and its queue with the last one.
    fn remove(&mut self, name: &QueueName, ticket: u64) -> Option<Request<S>> {
        let queue = self.queues.get_mut(name)?;
        let request = queue.requests.remove(&ticket)?;
        queue.units -= u128::from(request.cost);
        let length = queue.requests.len();
        self.requests -= 1;
        self.by_length.remove(&(length + 1, name.clone()));
        match length {
            0 => drop(self.queues.remove(name)),
            _ => drop(self.by_length.insert((length, name.clone()))),
        }
        Some(request)
    }
}

impl<S> KeyQueue<S> {
    fn new(head: u64) -> Self {
        Self {
            requests: BTreeMap::new(),
            head,
            units: 0,
            admitted_units: 0,
            smallest_cost: u64::MAX,
            denial: None,
        }
    }

    /// Returns the latest denial of a head.
    pub(super) fn denial(&self) -> Option<&Arc<Denial>> {
        self.denial.as_ref()
    }

    /// Returns a lower bound of the wait of a request that joins now.
    pub(super) fn min_wait(&self, cost: u64) -> Duration {
        let ahead = self.admitted_units + self.units;
        self.denial
            .as_ref()
            .map_or(Duration::ZERO, |denial| denial.min_wait(ahead, cost, self.smallest_cost.min(cost)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Action {
        Join(u8),
        /// Of the request at this index, modulo their number.
        Leave(usize),
        Move(usize, u8),
    }

    fn action() -> impl Strategy<Value = Action> {
        // Half of all requests are for one key.
        let queue = prop_oneof![Just(0), 0_u8..6];
        prop_oneof![
            4 => queue.clone().prop_map(Action::Join),
            2 => any::<usize>().prop_map(Action::Leave),
            1 => (any::<usize>(), queue).prop_map(|(at, queue)| Action::Move(at, queue)),
        ]
    }

    /// The requests in the order of arrival, with their queues; and the head of each queue.
    #[derive(Default)]
    struct Oracle {
        requests: Vec<(u64, u8)>,
        heads: HashMap<u8, u64>,
    }

    impl Oracle {
        fn length(&self, queue: u8) -> usize {
            self.requests.iter().filter(|(_, other)| *other == queue).count()
        }

        fn longest(&self) -> usize {
            self.requests.iter().map(|(_, queue)| self.length(*queue)).max().unwrap_or(0)
        }

        fn newest_but_head(&self, queue: u8) -> Option<u64> {
            let mut newest = self.requests.iter().rev().filter(|(_, other)| *other == queue);
            newest.find(|(ticket, _)| self.heads[&queue] != *ticket).map(|(ticket, _)| *ticket)
        }

        /// Returns whether the request is the head.
        fn insert(&mut self, ticket: u64, queue: u8) -> bool {
            self.requests.push((ticket, queue));
            self.requests.sort_unstable();
            *self.heads.entry(queue).or_insert(ticket) == ticket
        }

        /// Returns the next head if the request was the head.
        fn remove(&mut self, ticket: u64, queue: u8) -> Option<u64> {
            self.requests.retain(|(other, _)| *other != ticket);
            if self.heads[&queue] != ticket {
                return None;
            }
            self.heads.remove(&queue);
            let next = self.requests.iter().find(|(_, other)| *other == queue)?.0;
            self.heads.insert(queue, next);
            Some(next)
        }
    }

    /// Runs the actions. The signal of each request is its ticket.
    fn run(permits: usize, actions: &[Action]) -> Result<(), TestCaseError> {
        let (mut queues, mut oracle, mut next_ticket) = (KeyQueues::new(permits), Oracle::default(), 0);
        for action in actions {
            let chosen = |at: usize| oracle.requests.get(at % oracle.requests.len().max(1)).copied();
            match *action {
                Action::Join(queue) => {
                    let is_full = oracle.requests.len() == permits;
                    let yields = oracle.longest() > oracle.length(queue) + 1;
                    let joined = queues.join(&queue.into(), 2, next_ticket);
                    prop_assert_eq!(joined.is_none(), is_full && !yields);
                    let Some(joined) = joined else { continue };
                    prop_assert_eq!(joined.displaced.is_some(), is_full);
                    if let Some(ticket) = joined.displaced {
                        let lost = oracle.requests.iter().find(|(other, _)| *other == ticket).unwrap().1;
                        prop_assert_eq!(oracle.length(lost), oracle.longest());
                        prop_assert_eq!(oracle.newest_but_head(lost), Some(ticket));
                        oracle.remove(ticket, lost);
                        prop_assert!(oracle.length(lost) > oracle.length(queue));
                    }
                    prop_assert_eq!(joined.ticket, next_ticket);
                    prop_assert_eq!(joined.is_head, oracle.insert(next_ticket, queue));
                    next_ticket += 1;
                }
                Action::Leave(at) => {
                    let Some((ticket, queue)) = chosen(at) else { continue };
                    let expected = oracle.remove(ticket, queue);
                    prop_assert_eq!(queues.leave(&queue.into(), ticket, at % 2 == 0), expected);
                    prop_assert_eq!(queues.leave(&queue.into(), ticket, true), None, "it has left");
                }
                Action::Move(at, to) => {
                    let Some((ticket, from)) = chosen(at) else { continue };
                    let next = oracle.remove(ticket, from);
                    let expected = (oracle.insert(ticket, to), next);
                    prop_assert_eq!(queues.move_to(&from.into(), ticket, &to.into(), 2, ticket), expected);
                }
            }
            prop_assert!(oracle.requests.len() <= permits);
            prop_assert_eq!(queues.size(), (oracle.requests.len(), oracle.heads.len()));
            for &queue in oracle.heads.keys() {
                let units = queues.get(&queue.into()).map(|queue| queue.units);
                prop_assert_eq!(units, Some(2 * oracle.length(queue) as u128));
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

        #[test]
        fn queues_agree_with_the_oracle(
            permits in 0_usize..12,
            actions in prop::collection::vec(action(), 0..80),
        ) {
            run(permits, &actions)?;
        }
    }

    #[test]
    fn keys_share_the_permits_fairly() {
        let mut queues = KeyQueues::new(10);
        let lengths = |queues: &KeyQueues<()>| [0_u8, 1, 2].map(|queue| queues.length(&queue.into()));
        for (queue, requests, expected) in
            [(0_u8, 100, [10, 0, 0]), (1, 2, [8, 2, 0]), (2, 100, [4, 2, 4]), (1, 100, [4, 3, 3])]
        {
            for _ in 0..requests {
                queues.join(&queue.into(), 1, ());
            }
            let lengths = lengths(&queues);
            assert_eq!(lengths.iter().sum::<usize>(), 10);
            let spread =
                lengths.iter().zip(expected).all(|(&length, expected)| length.abs_diff(expected) <= 1);
            assert!(spread, "{lengths:?}, not {expected:?}");
        }
    }
}

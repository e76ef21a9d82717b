//! The queues of waiting requests: a state machine without a lock, a task or a clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tidegate::Check;

use super::position::Denial;

/// The largest number of heads of a queue. Bounds the checks that are denied when the units run out.
const MAX_HEADS: usize = 64;

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
    /// The numbers of permits reserved for checks in flight, by queue.
    reserved: HashMap<QueueName, usize>,
    all_reserved: usize,
}

/// The requests that wait for one key. Tickets are in the order of arrival.
///
/// The heads make checks. Their number grows by one with each admission, so it doubles with each round trip,
/// and returns to one with a denial. Only the oldest head waits for the retry time of its denial.
pub(super) struct KeyQueue<S> {
    /// The units of each head, by ticket. 0 if the latest denial may already include them.
    heads: BTreeMap<u64, u64>,
    /// The costs and signals of the other requests, by ticket.
    waiting: BTreeMap<u64, (u64, S)>,
    /// How many requests may be heads beside the oldest one. After a denial, further heads remain until their
    /// checks are decided.
    further_heads: usize,
    /// The sum of the units of `heads` and `waiting`.
    units: u128,
    /// The units admitted from this queue since `denial`.
    admitted_units: u128,
    /// Of all requests that ever joined.
    smallest_cost: u64,
    /// The latest denial of a head.
    denial: Option<Arc<Denial>>,
}

/// The position of a new request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Joined<S> {
    pub(super) ticket: u64,
    pub(super) is_head: bool,
    /// The signal of the request that lost its permit to this one. A head has none: it observes the loss with
    /// its next denial.
    pub(super) displaced: Option<S>,
}

impl<S> KeyQueues<S> {
    pub(super) fn new(permits: usize) -> Self {
        Self {
            permits,
            requests: 0,
            next_ticket: 0,
            queues: HashMap::new(),
            by_length: BTreeSet::new(),
            reserved: HashMap::new(),
            all_reserved: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    pub(super) fn get(&self, name: &QueueName) -> Option<&KeyQueue<S>> {
        self.queues.get(name)
    }

    /// Reserves a permit for a request that may [`join`](Self::join) later. Displaces no request. Returns false if
    /// all permits are taken or reserved, and no queue is longer than this one would become.
    pub(super) fn reserve(&mut self, name: &QueueName) -> bool {
        let reserved = self.reserved.get(name).copied().unwrap_or(0);
        let has_permit = self.requests + self.all_reserved < self.permits
            || self.longest() > self.length(name) + reserved + 1;
        if has_permit {
            self.reserved.insert(name.clone(), reserved + 1);
            self.all_reserved += 1;
        }
        has_permit
    }

    /// Releases a reserved permit, also after the request has joined.
    pub(super) fn release(&mut self, name: &QueueName) {
        let Some(reserved) = self.reserved.get_mut(name) else { return };
        *reserved -= 1;
        self.all_reserved -= 1;
        if *reserved == 0 {
            self.reserved.remove(name);
        }
    }

    /// Adds a request to the end of a queue. Returns `None` if all permits are taken and no queue is longer
    /// than this one would become.
    pub(super) fn join(&mut self, name: &QueueName, cost: u64, signal: S) -> Option<Joined<S>> {
        let is_full = self.requests >= self.permits;
        if is_full && self.longest() <= self.length(name) + 1 {
            return None;
        }
        let displaced = if is_full { self.displace() } else { None };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        Some(Joined { ticket, is_head: self.insert(name, ticket, cost, signal, false), displaced })
    }

    /// Removes a request, if it is still in this queue. Returns the signals of the next heads.
    pub(super) fn leave(&mut self, name: &QueueName, ticket: u64) -> Vec<S> {
        self.remove(name, ticket);
        self.queues.get_mut(name).map_or_else(Vec::new, KeyQueue::next_heads)
    }

    /// Records that a head was admitted. `has_more`: whether its gate would admit another one of its cost.
    pub(super) fn record_admission(&mut self, name: &QueueName, ticket: u64, has_more: bool) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        let Some(units) = queue.heads.get(&ticket) else { return };
        queue.admitted_units += u128::from(*units);
        // After a denial, the oldest head is the next one, although others may still be admitted.
        let is_denied = queue.further_heads == 0 && queue.oldest_head() != Some(ticket);
        queue.further_heads =
            if has_more && !is_denied { (queue.further_heads + 1).min(MAX_HEADS - 1) } else { 0 };
    }

    /// Moves a denied head to the queue of the check that denied it, to its place by arrival. It is a head there
    /// if there is no other, and remains one if it is the oldest of this queue. Returns whether it is a head,
    /// and the signals of the next heads of its old queue. A request that has lost its permit does not move.
    pub(super) fn back_off(
        &mut self,
        from: &QueueName,
        ticket: u64,
        to: &QueueName,
        cost: u64,
        signal: S,
    ) -> (bool, Vec<S>) {
        let queue = self.queues.get(from);
        let is_oldest = from == to && queue.is_some_and(|queue| queue.oldest_head() == Some(ticket));
        let is_waiting = self.remove(from, ticket).is_some();
        if let Some(queue) = self.queues.get_mut(to) {
            queue.further_heads = 0;
            for units in queue.heads.values_mut() {
                queue.units -= u128::from(std::mem::take(units));
            }
        }
        let is_head = is_waiting && self.insert(to, ticket, cost, signal, is_oldest);
        (is_head, self.queues.get_mut(from).map_or_else(Vec::new, KeyQueue::next_heads))
    }

    /// Records the latest denial by the key of this queue.
    pub(super) fn set_denial(&mut self, name: &QueueName, denial: Arc<Denial>) {
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

    fn longest(&self) -> usize {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    fn length(&self, name: &QueueName) -> usize {
        self.queues.get(name).map_or(0, KeyQueue::len)
    }

    /// Removes the newest request of a longest queue, which has at least two. Its oldest head stays.
    fn displace(&mut self) -> Option<S> {
        let (_, name) = self.by_length.last()?.clone();
        let newest = self.queues.get(&name)?.newest_but_oldest_head()?;
        self.remove(&name, newest)?
    }

    /// Returns whether the request is a head: if it must be, or if the queue may have one more.
    fn insert(&mut self, name: &QueueName, ticket: u64, cost: u64, signal: S, must_be_head: bool) -> bool {
        let queue = self.queues.entry(name.clone()).or_insert_with(KeyQueue::new);
        queue.units += u128::from(cost);
        queue.smallest_cost = queue.smallest_cost.min(cost);
        let is_head = must_be_head || queue.heads.len() <= queue.further_heads;
        if is_head {
            queue.heads.insert(ticket, cost);
        } else {
            queue.waiting.insert(ticket, (cost, signal));
        }
        let length = queue.len();
        self.requests += 1;
        self.by_length.remove(&(length - 1, name.clone()));
        self.by_length.insert((length, name.clone()));
        is_head
    }

    /// Removes a request, and its queue with the last one. Returns the signal, which a head does not have.
    fn remove(&mut self, name: &QueueName, ticket: u64) -> Option<Option<S>> {
        let queue = self.queues.get_mut(name)?;
        let (units, signal) = match queue.heads.remove(&ticket) {
            Some(units) => (units, None),
            None => queue.waiting.remove(&ticket).map(|(cost, signal)| (cost, Some(signal)))?,
        };
        queue.units -= u128::from(units);
        let length = queue.len();
        self.requests -= 1;
        self.by_length.remove(&(length + 1, name.clone()));
        match length {
            0 => drop(self.queues.remove(name)),
            _ => drop(self.by_length.insert((length, name.clone()))),
        }
        Some(signal)
    }
}

impl<S> KeyQueue<S> {
    fn new() -> Self {
        Self {
            heads: BTreeMap::new(),
            waiting: BTreeMap::new(),
            further_heads: 0,
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

    fn len(&self) -> usize {
        self.heads.len() + self.waiting.len()
    }

    fn oldest_head(&self) -> Option<u64> {
        self.heads.keys().next().copied()
    }

    fn newest_but_oldest_head(&self) -> Option<u64> {
        self.waiting.keys().next_back().or_else(|| self.heads.keys().skip(1).next_back()).copied()
    }

    /// Makes as many requests heads as the queue may have. Returns their signals.
    fn next_heads(&mut self) -> Vec<S> {
        let mut signals = Vec::new();
        while self.heads.len() <= self.further_heads
            && let Some((ticket, (cost, signal))) = self.waiting.pop_first()
        {
            self.heads.insert(ticket, cost);
            signals.push(signal);
        }
        signals
    }
}

#[cfg(test)]
mod tests;

/// Identifies a queue: a gate and a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueName(Arc<[u8]>);

impl QueueName {
    /// Returns the name of the queue for the key of this check.
    pub(super) fn of(check: &Check) -> Self {
        // Requests that may use fewer slots of a key wait apart from critical ones, which would wait behind them.
        let restriction = check.restriction().map_or_else(String::new, |units| format!("{units}\0"));
        // A gate's name contains no zero byte.
        let gate = check.gate().unwrap_or_default().as_bytes();
        Self([gate, b"\0", restriction.as_bytes(), check.key()].concat().into())
    }
}

#[cfg(test)]
impl From<u8> for QueueName {
    fn from(name: u8) -> Self {
        Self([name].into())
    }
}

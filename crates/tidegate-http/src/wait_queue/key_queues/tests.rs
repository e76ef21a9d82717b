//! Compares the state machine with a plain list.

use proptest::prelude::*;

use super::*;

const COST: u64 = 2;

#[derive(Clone, Debug)]
enum Action {
    Join(u8),
    Reserve(u8),
    /// Of the oldest reserved permit. `true` if the request joins.
    Release(bool),
    /// Of the request at this index, modulo their number.
    Leave(usize),
    /// Of a head. `true` if there are more units.
    Admit(usize, bool),
    Deny(usize, u8),
}

fn action() -> impl Strategy<Value = Action> {
    // Half of all requests are for one key.
    let queue = || prop_oneof![Just(0), 0_u8..6];
    prop_oneof![
        5 => queue().prop_map(Action::Join),
        2 => queue().prop_map(Action::Reserve),
        2 => any::<bool>().prop_map(Action::Release),
        1 => any::<usize>().prop_map(Action::Leave),
        3 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(at, more)| Action::Admit(at, more)),
        1 => (any::<usize>(), Just(0)).prop_map(|(at, queue)| Action::Deny(at, queue)),
        1 => (any::<usize>(), queue()).prop_map(|(at, queue)| Action::Deny(at, queue)),
    ]
}

#[derive(Clone, Copy)]
struct Request {
    ticket: u64,
    queue: u8,
    is_head: bool,
    units: u64,
}

/// The requests in the order of arrival.
#[derive(Default)]
struct Oracle {
    requests: Vec<Request>,
    reserved: Vec<u8>,
    further_heads: [usize; 6],
}

impl Oracle {
    fn of(&self, queue: u8) -> impl DoubleEndedIterator<Item = Request> {
        self.requests.iter().copied().filter(move |request| request.queue == queue)
    }

    fn length(&self, queue: u8) -> usize {
        self.of(queue).count()
    }

    fn heads(&self, queue: u8) -> usize {
        self.of(queue).filter(|request| request.is_head).count()
    }

    fn longest(&self) -> u8 {
        (0..6).max_by_key(|queue| self.length(*queue)).unwrap()
    }

    fn is_oldest_head(&self, ticket: u64, queue: u8) -> bool {
        self.of(queue).find(|request| request.is_head).is_some_and(|request| request.ticket == ticket)
    }

    /// Returns whether the request is a head.
    fn insert(&mut self, ticket: u64, queue: u8, must_be_head: bool) -> bool {
        let is_head = must_be_head || self.heads(queue) <= self.further_heads[usize::from(queue)];
        self.requests.push(Request { ticket, queue, is_head, units: COST });
        self.requests.sort_unstable_by_key(|request| request.ticket);
        is_head
    }

    fn remove(&mut self, ticket: u64) {
        let Some(at) = self.requests.iter().position(|request| request.ticket == ticket) else { return };
        let queue = self.requests.remove(at).queue;
        if self.length(queue) == 0 {
            self.further_heads[usize::from(queue)] = 0;
        }
    }

    fn next_heads(&mut self, queue: u8) -> Vec<u64> {
        let missing = (self.further_heads[usize::from(queue)] + 1).saturating_sub(self.heads(queue));
        let waiting = self.requests.iter_mut().filter(|request| request.queue == queue && !request.is_head);
        let next = waiting.take(missing).map(|request| {
            request.is_head = true;
            request.ticket
        });
        next.collect()
    }

    /// Makes room for a request that joins. Returns `None` if there is none, and otherwise the request that
    /// loses its permit, unless it is a head.
    fn make_room(&mut self, permits: usize, queue: u8) -> Option<Option<u64>> {
        let longest = self.longest();
        if self.requests.len() < permits {
            return Some(None);
        } else if self.length(longest) <= self.length(queue) + 1 {
            return None;
        }
        let newest_waiting = self.of(longest).rfind(|request| !request.is_head);
        let mut heads = self.of(longest).rev();
        let lost = newest_waiting.or_else(|| heads.find(|it| !self.is_oldest_head(it.ticket, longest)))?;
        drop(heads);
        self.remove(lost.ticket);
        Some((!lost.is_head).then_some(lost.ticket))
    }
}

/// Runs the actions. The signal of each request is its ticket.
fn run(permits: usize, actions: &[Action]) -> Result<(), TestCaseError> {
    let (mut queues, mut oracle, mut next_ticket) = (KeyQueues::new(permits), Oracle::default(), 0);
    for action in actions {
        let chosen = |at: usize| oracle.requests.get(at % oracle.requests.len().max(1)).copied();
        match *action {
            Action::Reserve(queue) => {
                let has_permit = oracle.requests.len() + oracle.reserved.len() < permits || {
                    let reserved = oracle.reserved.iter().filter(|other| **other == queue).count();
                    oracle.length(oracle.longest()) > oracle.length(queue) + reserved + 1
                };
                prop_assert_eq!(queues.reserve(&queue.into()), has_permit);
                oracle.reserved.extend(has_permit.then_some(queue));
            }
            Action::Join(_) | Action::Release(_) => {
                let (queue, joins) = match *action {
                    Action::Release(joins) if !oracle.reserved.is_empty() => {
                        let queue = oracle.reserved.remove(0);
                        queues.release(&queue.into());
                        (queue, joins)
                    }
                    Action::Join(queue) => (queue, true),
                    _ => continue,
                };
                if !joins {
                    continue;
                }
                let room = oracle.make_room(permits, queue);
                let joined = queues.join(&queue.into(), COST, next_ticket);
                prop_assert_eq!(joined.is_some(), room.is_some());
                let (Some(joined), Some(displaced)) = (joined, room) else { continue };
                let is_head = oracle.insert(next_ticket, queue, false);
                prop_assert_eq!(joined, Joined { ticket: next_ticket, is_head, displaced });
                next_ticket += 1;
            }
            Action::Leave(at) => {
                let Some(Request { ticket, queue, .. }) = chosen(at) else { continue };
                oracle.remove(ticket);
                prop_assert_eq!(queues.leave(&queue.into(), ticket), oracle.next_heads(queue));
                prop_assert_eq!(queues.leave(&queue.into(), ticket), Vec::<u64>::new(), "it has left");
                let denied = queues.back_off(&6.into(), ticket, &7.into(), COST, ticket);
                prop_assert_eq!(denied, (false, vec![]), "it has left");
            }
            Action::Admit(at, has_more) => {
                let Some(Request { ticket, queue, is_head: true, .. }) = chosen(at) else { continue };
                let is_oldest = oracle.is_oldest_head(ticket, queue);
                let further = &mut oracle.further_heads[usize::from(queue)];
                *further = if has_more && (is_oldest || *further > 0) { *further + 1 } else { 0 };
                oracle.remove(ticket);
                queues.record_admission(&queue.into(), ticket, has_more);
                prop_assert_eq!(queues.leave(&queue.into(), ticket), oracle.next_heads(queue));
            }
            Action::Deny(at, to) => {
                let Some(Request { ticket, queue, is_head: true, .. }) = chosen(at) else { continue };
                let stays = queue == to && oracle.is_oldest_head(ticket, queue);
                oracle.remove(ticket);
                oracle.further_heads[usize::from(to)] = 0;
                for head in oracle.requests.iter_mut().filter(|it| it.queue == to && it.is_head) {
                    head.units = 0;
                }
                let is_head = oracle.insert(ticket, to, stays);
                let expected = (is_head, oracle.next_heads(queue));
                let denied = queues.back_off(&queue.into(), ticket, &to.into(), COST, ticket);
                prop_assert_eq!(denied, expected);
            }
        }
        prop_assert!(oracle.requests.len() <= permits);
        prop_assert_eq!(queues.all_reserved, queues.reserved.values().sum::<usize>());
        let names: Vec<u8> = (0..6).filter(|queue| oracle.length(*queue) > 0).collect();
        prop_assert_eq!(queues.size(), (oracle.requests.len(), names.len()));
        for queue in names {
            prop_assert!(oracle.heads(queue) > 0, "nothing would wake the queue");
            let units = queues.get(&queue.into()).map(|queue| queue.units);
            prop_assert_eq!(units, Some(oracle.of(queue).map(|request| u128::from(request.units)).sum()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn queues_agree_with_the_oracle(
        permits in 0_usize..12,
        actions in prop::collection::vec(action(), 0..120),
    ) {
        run(permits, &actions)?;
    }
}

#[test]
fn heads_double_with_each_round_trip_and_a_denial_leaves_the_oldest() {
    let (mut queues, queue) = (KeyQueues::new(1_000), 0.into());
    let mut heads: Vec<u64> = Vec::new();
    for ticket in 0..1_000 {
        heads.extend(queues.join(&queue, 1, ticket).unwrap().is_head.then_some(ticket));
    }
    let (mut admitted, mut numbers) = (Vec::new(), Vec::new());
    while admitted.len() < 400 {
        numbers.push(heads.len());
        for ticket in std::mem::take(&mut heads) {
            queues.record_admission(&queue, ticket, true);
            heads.extend(queues.leave(&queue, ticket));
            admitted.push(ticket);
        }
    }
    assert_eq!(numbers, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 64]);
    assert!(admitted.is_sorted(), "{admitted:?}");
    // The newest head is denied first, and one of the others is admitted after that.
    let oldest = heads[0];
    for &denied in heads.iter().rev().filter(|ticket| **ticket != oldest + 1) {
        let (is_head, next) = queues.back_off(&queue, denied, &queue, 1, denied);
        assert_eq!((is_head, next), (denied == oldest, vec![]));
    }
    queues.record_admission(&queue, oldest + 1, true);
    assert!(queues.leave(&queue, oldest + 1).is_empty());
    queues.record_admission(&queue, oldest, true);
    assert_eq!(queues.leave(&queue, oldest), [oldest + 2, oldest + 3]);
}

#[test]
fn reserved_permit_displaces_no_request_until_it_is_used() {
    let (mut queues, long, short) = (KeyQueues::new(3), 0.into(), 1.into());
    for ticket in 0..3 {
        assert!(queues.reserve(&long));
        queues.join(&long, 1, ticket).unwrap();
        queues.release(&long);
    }
    assert!(!queues.reserve(&long) && queues.reserve(&short) && queues.reserve(&short));
    assert!(!queues.reserve(&short), "the third one would make its queue the longer one");
    assert_eq!(queues.size(), (3, 1));
    let displaced = queues.join(&short, 1, 3).unwrap().displaced;
    assert_eq!(displaced, Some(2));
    queues.release(&short);
    queues.release(&short);
    assert!(queues.reserved.is_empty());
}

#[test]
fn keys_share_the_permits_fairly() {
    let mut queues = KeyQueues::new(10);
    let lengths =
        |queues: &KeyQueues<()>| [0_u8, 1, 2].map(|queue| queues.get(&queue.into()).map_or(0, KeyQueue::len));
    for (queue, requests, expected) in
        [(0_u8, 100, [10, 0, 0]), (1, 2, [8, 2, 0]), (2, 100, [4, 2, 4]), (1, 100, [4, 3, 3])]
    {
        for _ in 0..requests {
            queues.join(&queue.into(), 1, ());
        }
        let lengths = lengths(&queues);
        assert_eq!(lengths.iter().sum::<usize>(), 10);
        let spread = lengths.iter().zip(expected).all(|(&length, expected)| length.abs_diff(expected) <= 1);
        assert!(spread, "{lengths:?}, not {expected:?}");
    }
}

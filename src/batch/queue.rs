//! The checks that are enqueued, in order of arrival, equal checks together.

use std::collections::{HashMap, VecDeque};

use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{CheckReply, Share};
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::keyed_hash::{IdentityHasher, KeyedHash};
use crate::store::{Companion, Group, GroupItem, MAX_WORK, Outcome};

/// A caller that waits.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) answer: oneshot::Sender<CheckReply>,
    pub(super) deadline: Deadline,
}

/// Equal checks: one group for the store, whose `n` is their number.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) group: Group,
    pub(super) callers: SmallVec<[Caller; 1]>,
    /// Whether `n` is the number of callers: each makes one check.
    is_one_each: bool,
    keyed_hash: Option<KeyedHash>,
    /// Callers that this holds room for: at least one, also when all callers are gone.
    occupied: usize,
}

/// A batch, and its work for the store.
#[derive(Debug, Default)]
pub(super) struct Batched {
    pub(super) merged: Vec<Merged>,
    work: u32,
}

#[derive(Debug, Default)]
pub(super) struct ShardQueue {
    merged: VecDeque<Merged>,
    /// How many left before the first of `merged`.
    left: u64,
    /// The positions of checks with a keyed_hash, counted as `left` is.
    positions: HashMap<KeyedHash, u64, IdentityHasher>,
    waiting: usize,
    /// The sum over `merged`.
    occupied: usize,
}

impl Batched {
    /// Merges equal checks of several shards. Looks for them only where more than one check waits, as
    /// for a hot key: unlike checks are many.
    fn add(&mut self, next: Merged) {
        let is_equal =
            |other: &Merged| other.keyed_hash == next.keyed_hash && are_equal(&other.group, &next.group);
        let equal = match next.keyed_hash {
            Some(_) if next.callers.len() > 1 => self.merged.iter_mut().find(|other| is_equal(other)),
            _ => None,
        };
        match equal {
            Some(equal) => {
                self.work -= next.group.work();
                equal.callers.extend(next.callers);
            }
            None => self.merged.push(next),
        }
    }
}

impl ShardQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.merged.is_empty()
    }

    /// Returns the number of checks, with those that were cancelled, and of rows that they are for the store.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.waiting, self.merged.len())
    }

    /// Returns the number of callers that the queue holds room for.
    pub(super) fn occupied(&self) -> usize {
        self.occupied
    }

    /// Returns the group if an equal one was there: the caller drops it without the lock.
    pub(super) fn push(
        &mut self,
        group: Group,
        keyed_hash: Option<KeyedHash>,
        caller: Caller,
    ) -> Option<Group> {
        self.waiting += 1;
        self.occupied += 1;
        if let Some(&position) = keyed_hash.and_then(|keyed_hash| self.positions.get(&keyed_hash)) {
            let equal = &mut self.merged[(position - self.left) as usize];
            if are_equal(&equal.group, &group) {
                equal.callers.push(caller);
                equal.occupied += 1;
                return Some(group);
            }
        }
        if let Some(keyed_hash) = keyed_hash {
            self.positions.insert(keyed_hash, self.left + self.merged.len() as u64);
        }
        let (callers, is_one_each) = (smallvec![caller], group.n == 1);
        self.merged.push_back(Merged { group, callers, is_one_each, keyed_hash, occupied: 1 });
        None
    }

    /// Moves the next checks to a batch: as many as are no more than [`MAX_WORK`] for the store. Some
    /// may have [no caller](Merged::is_waited_for) any more.
    pub(super) fn pop_into(&mut self, batch: &mut Batched) {
        while let Some(next) = self.merged.front() {
            let work = batch.work + next.group.work();
            if work > MAX_WORK && !batch.merged.is_empty() {
                break;
            }
            batch.work = work;
            let Some(next) = self.merged.pop_front() else { break };
            if let Some(keyed_hash) = next.keyed_hash
                && self.positions.get(&keyed_hash) == Some(&self.left)
            {
                self.positions.remove(&keyed_hash);
            }
            self.left += 1;
            self.waiting -= next.callers.len();
            self.occupied -= next.occupied;
            batch.add(next);
        }
    }

    /// See [`Merged::expire`]. An entry whose callers are all gone keeps room for one until it is
    /// popped, so that the queue stays bounded.
    pub(super) fn expire(&mut self, now: Instant, late: &mut Vec<Caller>) -> Option<Instant> {
        let Self { merged, waiting, occupied, .. } = self;
        let next = |merged: &mut Merged| {
            let before = merged.callers.len();
            let next = merged.expire(now, late);
            *waiting -= before - merged.callers.len();
            let needed = merged.callers.len().max(1);
            *occupied -= merged.occupied - needed;
            merged.occupied = needed;
            next
        };
        merged.iter_mut().filter_map(next).min()
    }
}

impl Merged {
    /// Returns whether any caller still waits, and takes the number of those that do as `n`.
    pub(super) fn is_waited_for(&mut self) -> bool {
        self.callers.retain(|caller| !caller.answer.is_closed());
        if self.is_one_each {
            self.group.n = self.callers.len() as u64;
        }
        !self.callers.is_empty()
    }

    /// Returns the group for a call. Only its `n` stays here.
    pub(super) fn send(&mut self) -> Group {
        Group { items: std::mem::take(&mut self.group.items), n: self.group.n }
    }

    /// Returns the last deadline of its callers.
    pub(super) fn last_deadline(&self) -> Option<Instant> {
        self.callers.iter().map(|caller| caller.deadline.at).max()
    }

    /// Moves callers whose deadline has passed to `late`, to be notified without a lock. Returns the next deadline.
    pub(super) fn expire(&mut self, now: Instant, late: &mut Vec<Caller>) -> Option<Instant> {
        // Callers that wait keep their order. In place, since this runs under the lock of the shard.
        let mut waiting = 0;
        for index in 0..self.callers.len() {
            if self.callers[index].deadline.at > now {
                self.callers.swap(waiting, index);
                waiting += 1;
            }
        }
        late.extend(self.callers.drain(waiting..));
        self.callers.iter().map(|caller| caller.deadline.at).min()
    }

    /// Gives the admissions to the first callers that still wait.
    pub(super) fn share_out(self, outcome: Result<Outcome, Error>, sent_us: u64) {
        let n = self.group.n;
        let mut index = 0;
        for caller in self.callers {
            let share = outcome.clone().map(|outcome| Share { outcome, n, index, sent_us });
            if caller.answer.send(share).is_ok() {
                index += 1;
            }
        }
    }
}

/// Returns `None` for checks that are never merged: a take of several units at once, an acquire, a
/// reservation, and gates that count denied checks, since their decisions depend on the checks before.
pub(super) fn keyed_hash(group: &Group) -> Option<KeyedHash> {
    let merges = |item: &GroupItem| {
        matches!(item.companion.as_deref(), None | Some(Companion::Holds(None) | Companion::Ban { .. }))
            && !item.target.gate.quota.kind().counts_denied()
    };
    if group.n > 1 || !group.items.iter().all(merges) {
        return None;
    }
    let items = group.items.iter().map(|item| item.target.keyed_hash.with(item.cost));
    items.reduce(|all, item| all.with(item.0)).map(|all| all.with(group.n))
}

fn are_equal(a: &Group, b: &Group) -> bool {
    a.n == b.n
        && a.items.len() == b.items.len()
        && a.items.iter().zip(&b.items).all(|(a, b)| {
            a.target.redis_key == b.target.redis_key
                && a.cost == b.cost
                && a.max_delay_us == b.max_delay_us
                && a.companion == b.companion
                && a.target.gate.quota == b.target.gate.quota
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::reference::holds::NewHold;
    use crate::quota::{Quota, Rate};
    use crate::store::{GateInfo, GroupItem, Target};

    const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

    fn group(quota: Quota, key: &str) -> Group {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
        let target = Target::new(&gate, key.as_bytes(), None);
        Group::of_one(GroupItem::new(target, 1))
    }

    fn caller() -> (Caller, oneshot::Receiver<Result<Share, Error>>) {
        let (answer, answered) = oneshot::channel();
        (Caller { answer, deadline: Deadline::new(MINUTE) }, answered)
    }

    fn five() -> Quota {
        Quota::fixed_window(5, MINUTE)
    }

    fn enqueue(queue: &mut ShardQueue, hashes: &KeyedHasher, key: &str) -> oneshot::Receiver<CheckReply> {
        let ((caller, answered), mut group) = (caller(), group(five(), key));
        group.items[0].target.keyed_hash = hashes.of(key);
        let keyed_hash = keyed_hash(&group);
        queue.push(group, keyed_hash, caller);
        answered
    }

    fn pop(queue: &mut ShardQueue) -> Vec<Merged> {
        let mut batch = Batched::default();
        queue.pop_into(&mut batch);
        batch.merged
    }

    /// Notifies callers whose deadline has passed. Returns the next deadline.
    fn expire(queue: &mut ShardQueue, now: Instant) -> Option<Instant> {
        let mut late = Vec::new();
        let next = queue.expire(now, &mut late);
        for Caller { answer, deadline } in late {
            answer.send(Err(Error::timeout("an answer", deadline.after))).unwrap();
        }
        next
    }

    fn sizes(queue: &mut ShardQueue) -> Vec<usize> {
        std::iter::from_fn(|| Some(pop(queue).len()).filter(|&size| size > 0)).collect()
    }

    #[test]
    fn late_callers_are_notified_and_the_next_deadline_is_known() {
        let mut queue = ShardQueue::default();
        let now = Instant::now();
        let mut waiting = Vec::new();
        for (key, seconds) in [("a", 1), ("b", 3), ("a", 2), ("c", 1)] {
            let (answer, answered) = oneshot::channel();
            let deadline = Deadline { at: now + Duration::from_secs(seconds), after: MINUTE };
            let group = group(Quota::fixed_window(5, MINUTE), key);
            let same = KeyedHash(u64::from(key.as_bytes()[0]));
            queue.push(group, Some(same), Caller { answer, deadline });
            waiting.push(answered);
        }
        let at = |seconds| now + Duration::from_secs(seconds);
        let answered = |waiting: &mut Vec<oneshot::Receiver<CheckReply>>| -> Vec<bool> {
            waiting.iter_mut().map(|answer| answer.try_recv().is_ok()).collect()
        };
        assert_eq!(expire(&mut queue, now), Some(at(1)));
        assert_eq!(answered(&mut waiting), [false; 4]);
        assert_eq!(expire(&mut queue, at(1)), Some(at(2)));
        assert_eq!(answered(&mut waiting), [true, false, false, true]);
        // The last check of `c` keeps its room until it is popped.
        assert_eq!((queue.waiting, queue.occupied), (2, 3));
        let sent: Vec<usize> =
            pop(&mut queue).iter_mut().map(|merged| usize::from(merged.is_waited_for())).collect();
        assert_eq!((sent, queue.waiting, queue.occupied), (vec![1, 1, 0], 0, 0));
        assert_eq!(expire(&mut queue, at(9)), None);
    }

    #[test]
    fn callers_keep_their_order_when_others_between_them_time_out() {
        let now = Instant::now();
        let (mut queue, mut waiting) = (ShardQueue::default(), Vec::new());
        for seconds in [1, 5, 1, 1, 4, 3, 1] {
            let (answer, answered) = oneshot::channel();
            let deadline = Deadline { at: now + Duration::from_secs(seconds), after: MINUTE };
            queue.push(group(five(), "key"), Some(KeyedHash(7)), Caller { answer, deadline });
            waiting.push(answered);
        }
        let next = expire(&mut queue, now + Duration::from_secs(2));
        assert_eq!(next, Some(now + Duration::from_secs(3)));
        let is_notified: Vec<bool> = waiting.iter_mut().map(|answer| answer.try_recv().is_ok()).collect();
        assert_eq!(is_notified, [true, false, true, true, false, false, true]);
        let left = pop(&mut queue).remove(0).callers;
        let seconds: Vec<u64> = left.iter().map(|caller| (caller.deadline.at - now).as_secs()).collect();
        assert_eq!(seconds, [5, 4, 3]);
    }

    #[test]
    fn a_batch_is_as_large_as_its_work_allows() {
        for (quota, sizes_of_300) in [
            (Quota::token_bucket(5, Rate::per_second(1)), &[128, 128, 44][..]),
            (Quota::sliding_counter(5, MINUTE), &[85, 85, 85, 45]),
            (Quota::sliding_log(5, MINUTE), &[51, 51, 51, 51, 51, 45]),
        ] {
            let mut queue = ShardQueue::default();
            let mut waiting = Vec::new();
            for number in 0..300 {
                let (caller, answered) = caller();
                queue.push(group(quota, &number.to_string()), None, caller);
                waiting.push(answered);
            }
            assert_eq!(sizes(&mut queue), sizes_of_300, "{quota}");
            assert!(queue.is_empty() && queue.positions.is_empty() && queue.waiting == 0);
        }
    }

    #[test]
    fn equal_checks_wait_in_the_position_of_the_first() {
        let (mut queue, hashes) = (ShardQueue::default(), KeyedHasher::default());
        let mut waiting = Vec::new();
        for key in ["a", "b", "a", "c", "b", "a"] {
            waiting.push(enqueue(&mut queue, &hashes, key));
        }
        // The caller of the first `b` is cancelled.
        drop(waiting.remove(1));
        let batch: Vec<(String, u64)> = pop(&mut queue)
            .into_iter()
            .filter_map(|mut merged| merged.is_waited_for().then_some(merged))
            .map(|merged| (merged.group.items[0].target.redis_key.clone(), merged.group.n))
            .collect();
        let key = |key: &str| group(five(), key).items[0].target.redis_key.clone();
        assert_eq!(batch, [(key("a"), 3), (key("b"), 1), (key("c"), 1)]);
        assert!(queue.positions.is_empty() && queue.waiting == 0);
    }

    #[test]
    fn equal_checks_of_two_shards_are_one_row_and_no_work_of_their_own() {
        let (mut batch, hashes) = (Batched::default(), KeyedHasher::default());
        let mut waiting = Vec::new();
        for shard in [&["a", "b", "a"][..], &["c", "a", "a", "b", "a"]] {
            let mut queue = ShardQueue::default();
            for key in shard {
                waiting.push(enqueue(&mut queue, &hashes, key));
            }
            queue.pop_into(&mut batch);
        }
        let callers: Vec<usize> = batch.merged.iter().map(|merged| merged.callers.len()).collect();
        // The second `b` is alone in its shard, so it is not merged.
        assert_eq!(callers, [5, 1, 1, 1]);
        assert_eq!(batch.work, batch.merged.iter().map(|merged| merged.group.work()).sum::<u32>());
    }

    #[test]
    fn equal_checks_that_are_sent_again_are_only_those_of_callers_left() {
        let (mut queue, hashes) = (ShardQueue::default(), KeyedHasher::default());
        let mut waiting: Vec<_> = (0..500).map(|_| enqueue(&mut queue, &hashes, "key")).collect();
        let mut merged = pop(&mut queue).remove(0);
        for left in [500, 1] {
            waiting.truncate(left);
            assert!(merged.is_waited_for());
            assert_eq!(merged.group.n, left as u64);
        }
    }

    #[test]
    fn checks_that_are_refused_by_a_batch_leave_it_room_for_lighter_ones() {
        let (log, bucket) = (Quota::sliding_log(5, MINUTE), Quota::token_bucket(5, Rate::per_second(1)));
        let (mut first, mut heavy, mut light) =
            (ShardQueue::default(), ShardQueue::default(), ShardQueue::default());
        let mut waiting = Vec::new();
        let mut push = |queue: &mut ShardQueue, group: Group| {
            let (caller, answered) = caller();
            queue.push(group, None, caller);
            waiting.push(answered);
        };
        push(&mut first, group(bucket, "first"));
        let mut all = group(log, "log");
        all.items = (0..100).map(|_| all.items[0].clone()).collect();
        push(&mut heavy, all);
        push(&mut light, group(bucket, "light"));
        let mut batch = Batched::default();
        for queue in [&mut first, &mut heavy, &mut light] {
            queue.pop_into(&mut batch);
        }
        assert_eq!((batch.merged.len(), heavy.is_empty(), light.is_empty()), (2, false, true));
        assert_eq!(batch.work, batch.merged.iter().map(|merged| merged.group.work()).sum::<u32>());
    }

    #[test]
    fn equal_checks_of_a_gate_with_holds_are_merged_and_reservations_are_not() {
        let hashed = |companion: Companion| {
            let mut group = group(five(), "key");
            group.items[0].companion = Some(Box::new(companion));
            keyed_hash(&group)
        };
        let hold = NewHold { id: "a".into(), ttl_us: 1_000_000, is_refunded: false };
        assert!(hashed(Companion::Holds(None)).is_some());
        assert!(hashed(Companion::Holds(Some(hold))).is_none());
    }

    #[test]
    fn unlike_checks_are_not_merged_although_their_hashes_are_equal() {
        let (mut queue, quota) = (ShardQueue::default(), Quota::leaky_bucket(5, Rate::per_second(1)));
        let like = |change: &dyn Fn(&mut Group)| {
            let mut group = group(quota, "key");
            change(&mut group);
            group
        };
        let unlike = [
            group(quota, "key"),
            group(quota, "other"),
            group(Quota::leaky_bucket(6, Rate::per_second(1)), "key"),
            like(&|group| group.n = 0),
            like(&|group| group.items[0].cost = 2),
            like(&|group| group.items[0].max_delay_us = Some(1)),
            like(&|group| group.items.push(group.items[0].clone())),
            like(&|group| group.items[0].companion = Some(Box::new(Companion::Holds(None)))),
        ];
        let mut waiting = Vec::new();
        for group in &unlike {
            let (caller, answered) = caller();
            queue.push(group.clone(), Some(KeyedHash(7)), caller);
            waiting.push(answered);
        }
        assert_eq!(sizes(&mut queue), [unlike.len()]);
        assert!(queue.positions.is_empty());
    }
}

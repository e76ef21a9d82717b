//! Groups: each takes units of several keys in one step, all or nothing. Groups that have a key in common travel in
//! one message, in order of arrival; the store decides each of them after those before it.
//!
//! A group whose keys are free is sent at once. While it is in flight, groups with one of its keys wait. When it has
//! landed, those whose keys are free travel in the next flights: in one for each hash tag, and each as much work as one
//! call may be. A flight has its turn at each of its keys, so no other message about one of them is under way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::holder::HolderLease;
use super::permit::UnitsGuard;
use super::pool::PoolState;
use super::turn::Turn;
use super::waiting::AcquireTerms;
use crate::batch::Share;
use crate::connection::Deadline;
use crate::error::{Error, QUEUE_ROOM};
use crate::key::HashTag;
use crate::key::keyed_hash::IdentityHasher;
use crate::runtime::sync::{Mutex, lock};
use crate::store::{GateInfo, Group, GroupItem, MAX_WORK, Target};

/// The maximum number of groups that wait for keys.
const MAX_WAITING: usize = 65_536;
/// How often a message that the store rejected, because its lease had lapsed, is sent again at once.
const MAX_REJECTIONS: usize = 3;
/// The event that a group waits for until it times out.
const FLIGHT: &str = "Redis to decide an acquire of several gates";

type FlightKeys = HashSet<Target, IdentityHasher>;
type Turns = HashMap<Target, Turn, IdentityHasher>;

/// The index of an item with an in-flight limit, its key, and the terms on which it is acquired.
pub(crate) type ItemAcquire = (usize, Target, AcquireTerms);

/// A group to acquire.
pub(crate) struct GroupAcquire {
    pub(crate) items: SmallVec<[GroupItem; 1]>,
    /// Those of the items with an in-flight limit.
    pub(crate) keys: Vec<ItemAcquire>,
}

/// The decision of the store on a group.
pub(crate) struct GroupAnswer {
    pub(crate) share: Share,
    /// The units that it holds, by item.
    pub(crate) held: Vec<(usize, UnitsGuard)>,
    /// For each item with an in-flight limit, the gate with the limit that decided.
    pub(crate) deciders: Vec<(usize, Arc<GateInfo>)>,
    /// The items of whose keys denied callers wait: the group was not admitted, so that it overtakes none.
    pub(crate) behind: Vec<usize>,
}

impl From<Share> for GroupAnswer {
    /// Makes the answer to a group that holds nothing.
    fn from(share: Share) -> Self {
        Self { share, held: Vec::new(), deciders: Vec::new(), behind: Vec::new() }
    }
}

struct WaitingGroup {
    group: GroupAcquire,
    deadline: Deadline,
    answer: oneshot::Sender<Result<GroupAnswer, Error>>,
}

/// The groups of a limiter.
pub(super) struct Groups {
    inner: Arc<PoolState>,
    queue: Mutex<GroupQueue>,
}

#[derive(Default)]
struct GroupQueue {
    /// The keys of the flights under way.
    busy: FlightKeys,
    /// In order of arrival.
    waiting: VecDeque<WaitingGroup>,
    /// The keys of the groups that wait, and the number of these groups.
    wanted: HashMap<Target, usize, IdentityHasher>,
}

/// Groups that travel together, and their keys, which no other flight has.
struct GroupFlight {
    groups: Arc<Groups>,
    waiting: Vec<WaitingGroup>,
    keys: FlightKeys,
}

/// What the message of a flight means for one of its keys.
#[derive(Default)]
struct KeyOutcome {
    /// The terms of the groups that were admitted, in order.
    admitted: Vec<AcquireTerms>,
    /// The first error of a group.
    error: Option<Error>,
}

impl GroupQueue {
    /// Returns the group if it can travel now, and marks its keys as busy. Otherwise it waits: if there is room, else it
    /// gets an error.
    fn push(&mut self, waiting: WaitingGroup) -> Option<(Vec<WaitingGroup>, FlightKeys)> {
        let keys: FlightKeys = waiting.keys().cloned().collect();
        if keys.iter().all(|key| !self.busy.contains(key) && !self.wanted.contains_key(key)) {
            self.busy.extend(keys.iter().cloned());
            return Some((vec![waiting], keys));
        }
        if self.waiting.len() >= MAX_WAITING {
            let error = Error::timeout(QUEUE_ROOM, waiting.deadline.after);
            drop(waiting.answer.send(Err(error)));
            return None;
        }
        keys.into_iter().for_each(|key| *self.wanted.entry(key).or_default() += 1);
        self.waiting.push_back(waiting);
        None
    }

    /// Frees the keys of a flight that has landed. Returns the next flights: afterwards each group that waits has a busy
    /// key, or one that a group before it wants.
    fn landed(&mut self, keys: &FlightKeys) -> Vec<(Vec<WaitingGroup>, FlightKeys)> {
        for key in keys {
            self.busy.remove(key);
        }
        let mut flights = Vec::new();
        let is_wanted = keys.iter().any(|key| self.wanted.contains_key(key));
        while is_wanted && let Some(next) = self.next() {
            flights.push(next);
        }
        flights
    }

    /// Removes groups of one hash tag, and so of one lease, that can travel now, in order of arrival, and marks their
    /// keys as busy. A group that stays keeps its keys for itself: none behind it overtakes it.
    fn next(&mut self) -> Option<(Vec<WaitingGroup>, FlightKeys)> {
        let (mut groups, mut keys, mut kept) =
            (Vec::<WaitingGroup>::new(), FlightKeys::default(), FlightKeys::default());
        let mut work = 0;
        for waiting in std::mem::take(&mut self.waiting) {
            let is_gone = waiting.answer.is_closed();
            let fits = groups.first().is_none_or(|first| {
                first.hash_tag() == waiting.hash_tag() && work + waiting.group.work() <= MAX_WORK
            });
            let is_free = |key: &Target| !self.busy.contains(key) && !kept.contains(key);
            let travels = fits && waiting.keys().all(is_free);
            if !(is_gone || travels) {
                kept.extend(waiting.keys().cloned());
                self.waiting.push_back(waiting);
                continue;
            }
            for key in waiting.keys() {
                if let Some(count) = self.wanted.get_mut(key) {
                    *count -= 1;
                }
            }
            if !is_gone {
                work += waiting.group.work();
                keys.extend(waiting.keys().cloned());
                groups.push(waiting);
            }
        }
        self.wanted.retain(|_, count| *count > 0);
        self.busy.extend(keys.iter().cloned());
        (!groups.is_empty()).then_some((groups, keys))
    }
}

impl WaitingGroup {
    fn keys(&self) -> impl Iterator<Item = &Target> {
        self.group.keys.iter().map(|(_, key, _)| key)
    }

    fn hash_tag(&self) -> HashTag {
        self.keys().next().map(|key| key.hash_tag).unwrap_or_default()
    }
}

impl GroupAcquire {
    fn work(&self) -> u32 {
        self.items.iter().map(GroupItem::work).sum()
    }

    /// Has the adaptive current limits decide. Returns the gates with these limits.
    pub(crate) fn adapt(&mut self) -> Vec<(usize, Arc<GateInfo>)> {
        let Self { items, keys } = self;
        let adapted = keys.iter_mut().map(|(item, _, terms)| {
            *terms = terms.clone().adapted();
            items[*item].target.gate = terms.decider.clone();
            (*item, terms.decider.clone())
        });
        adapted.collect()
    }

    /// Returns the items of whose keys denied callers wait.
    fn behind(&self, turns: &Turns) -> Vec<usize> {
        self.keys.iter().filter(|(_, key, _)| turns[key].is_behind).map(|(item, ..)| *item).collect()
    }
}

impl Groups {
    pub(super) fn new(inner: Arc<PoolState>) -> Self {
        Self { inner, queue: Mutex::default() }
    }

    /// Acquires a group, until its deadline.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        group: GroupAcquire,
        deadline: Deadline,
    ) -> Result<GroupAnswer, Error> {
        let (answer, answered) = oneshot::channel();
        let next = lock(&self.queue).push(WaitingGroup { group, deadline, answer });
        next.into_iter().for_each(|flight| self.start(flight));
        match timeout_at(deadline.at, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(Error::runtime_ended())),
            Err(_) => Err(Error::timeout(FLIGHT, deadline.after)),
        }
    }

    fn start(self: &Arc<Self>, (waiting, keys): (Vec<WaitingGroup>, FlightKeys)) {
        // Without a runtime, the flight is dropped.
        let _ = self.inner.background.spawn(GroupFlight { groups: self.clone(), waiting, keys }.run());
    }
}

impl Drop for GroupFlight {
    /// Starts the next flights, also if the runtime of this one has ended.
    fn drop(&mut self) {
        let next = lock(&self.groups.queue).landed(&self.keys);
        next.into_iter().for_each(|flight| self.groups.start(flight));
    }
}

impl GroupFlight {
    async fn run(mut self) {
        let mut groups = std::mem::take(&mut self.waiting);
        let last = groups.iter().map(|waiting| waiting.deadline).max_by_key(|deadline| deadline.at);
        let Some(deadline) = last else { return };
        let turn =
            async |key: &Target| Ok((key.clone(), Turn::new(&self.groups.inner, key, deadline).await?));
        let turns: Turns = match try_join_all(self.keys.iter().map(turn)).await {
            Ok(turns) => turns.into_iter().collect(),
            Err(error) => return fail(groups, &error),
        };
        let is_behind = |waiting: &mut WaitingGroup| !waiting.group.behind(&turns).is_empty();
        let behind: Vec<_> = groups.extract_if(.., is_behind).collect();
        join_all(behind.into_iter().map(|waiting| self.peek(waiting, &turns))).await;
        for _ in 0..MAX_REJECTIONS {
            groups = self.send(groups, &turns, deadline).await;
        }
        fail(groups, &Error::lapsed_lease());
    }

    /// Answers a group that would overtake denied callers.
    async fn peek(&self, WaitingGroup { mut group, deadline, answer }: WaitingGroup, turns: &Turns) {
        let (deciders, behind) = (group.adapt(), group.behind(turns));
        let share = self.groups.inner.send(Group { items: group.items, n: 0 }, deadline).await;
        drop(answer.send(share.map(|share| GroupAnswer { deciders, behind, ..GroupAnswer::from(share) })));
    }

    /// Sends groups in one message. Returns those that the store rejected because of the lease or the number: nothing
    /// of them was applied.
    async fn send(
        &self,
        mut groups: Vec<WaitingGroup>,
        turns: &Turns,
        deadline: Deadline,
    ) -> Vec<WaitingGroup> {
        groups.retain(|waiting| !waiting.answer.is_closed());
        let Some(first) = turns.values().next().filter(|_| !groups.is_empty()) else { return Vec::new() };
        let lease = match first.lease(deadline).await {
            Ok(lease) => lease,
            Err(error) => {
                fail(groups, &error);
                return Vec::new();
            }
        };
        let deciders: Vec<_> = groups.iter_mut().map(|waiting| waiting.group.adapt()).collect();
        let sent = messages(&groups, turns, &lease);
        let results = match <[Group; 1]>::try_from(sent) {
            // The batch merges it with calls about other keys.
            Ok([group]) => vec![self.groups.inner.send(group, deadline).await],
            Err(sent) => self.groups.inner.send_each(first.holder(), sent, deadline).await,
        };
        if results.iter().any(|result| result.as_ref().is_err_and(Error::is_lapsed_lease)) {
            self.groups.inner.lapse(first.holder(), lease.number).await;
        }
        let outcomes = outcomes(&groups, &results);
        let held = outcomes.into_iter().map(|(key, outcome)| {
            let held = turns[&key].answered(&lease, &outcome.admitted, outcome.error.as_ref());
            (key, held.into_iter())
        });
        let mut held: HashMap<Target, _, IdentityHasher> = held.collect();
        let mut rejected = Vec::new();
        for ((waiting, result), deciders) in groups.into_iter().zip(results).zip(deciders) {
            let answer = match result {
                Err(error) if error.is_lapsed_lease() || error.is_stale_message() => {
                    rejected.push(waiting);
                    continue;
                }
                Err(error) => Err(error),
                Ok(share) => {
                    let own = waiting.group.keys.iter().filter(|_| share.outcome.k > 0);
                    let held = own.filter_map(|(item, key, _)| Some((*item, held.get_mut(key)?.next()?)));
                    Ok(GroupAnswer { held: held.collect(), deciders, ..GroupAnswer::from(share) })
                }
            };
            // If the caller has given up, the units are released.
            drop(waiting.answer.send(answer));
        }
        rejected
    }
}

/// Returns the groups with the messages about their keys. The first one about a key states the units that the process
/// keeps, the others keep what that one leaves.
fn messages(groups: &[WaitingGroup], turns: &Turns, lease: &HolderLease) -> Vec<Group> {
    let (mut begun, is_shared) = (FlightKeys::default(), groups.len() > 1);
    let message = |WaitingGroup { group, .. }: &WaitingGroup| {
        let mut items = group.items.clone();
        for (item, key, _) in &group.keys {
            let turn = &turns[key];
            let keep = begun.insert(key.clone()).then(|| turn.begin(lease));
            items[*item].companion = Some(Box::new(turn.message(lease, keep, is_shared)));
        }
        Group { items, n: 1 }
    };
    groups.iter().map(message).collect()
}

/// Returns what the results of these groups mean for each of their keys.
fn outcomes(
    groups: &[WaitingGroup],
    results: &[Result<Share, Error>],
) -> HashMap<Target, KeyOutcome, IdentityHasher> {
    let mut outcomes = HashMap::<_, KeyOutcome, _>::default();
    for (waiting, result) in groups.iter().zip(results) {
        for (item, key, terms) in &waiting.group.keys {
            let outcome = outcomes.entry(key.clone()).or_default();
            match result {
                Ok(share) => {
                    let held = share.outcome.before[*item].raw[0];
                    let is_denied = terms.cost > terms.decider.quota.limit().saturating_sub(held);
                    terms.record_demand(held, share.outcome.k, is_denied);
                    outcome.admitted.extend((share.outcome.k > 0).then(|| terms.clone()));
                }
                // After any other error than a lack of memory, the store may count other units.
                Err(error) if outcome.error.as_ref().is_none_or(Error::is_out_of_memory) => {
                    outcome.error = Some(error.clone());
                }
                Err(_) => {}
            }
        }
    }
    outcomes
}

fn fail(groups: Vec<WaitingGroup>, error: &Error) {
    groups.into_iter().for_each(|waiting| drop(waiting.answer.send(Err(error.clone()))));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::in_flight::OnLapse;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::local::on_failure::OnFailure;
    use crate::quota::Quota;

    /// The caller of a group: its group has left the queue once it is dropped.
    type Caller = oneshot::Receiver<Result<GroupAnswer, Error>>;

    fn group(hasher: &KeyedHasher, keys: &[&str]) -> (WaitingGroup, Caller) {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let key = |(item, key): (usize, &&str)| {
            let gate = GateInfo::new(&keyspace, hasher, key, Quota::in_flight(1)).unwrap();
            let gate = Arc::new(gate);
            let terms = AcquireTerms::new(&gate, 1, OnFailure::Error, OnLapse::Restore).unwrap();
            (item, Target::new(&gate, b"x", None), terms)
        };
        let keys: Vec<_> = keys.iter().enumerate().map(key).collect();
        let items = keys.iter().map(|(_, target, _)| GroupItem::new(target.clone(), 1)).collect();
        let (answer, caller) = oneshot::channel();
        let group = GroupAcquire { items, keys };
        (WaitingGroup { group, deadline: Deadline::new(Duration::from_secs(1)), answer }, caller)
    }

    fn names(groups: &[WaitingGroup]) -> Vec<String> {
        let name = |key: &Target| key.gate.name.to_string();
        groups.iter().map(|waiting| waiting.keys().map(name).collect::<Vec<_>>().join("+")).collect()
    }

    #[test]
    fn groups_that_wait_for_common_keys_travel_together_and_overtake_none() {
        let (mut queue, hasher) = (GroupQueue::default(), KeyedHasher::default());
        let group = |keys: &[&str]| group(&hasher, keys);
        let (first, _a) = group(&["tenant"]);
        let (_, first_keys) = queue.push(first).expect("its key is free");
        let ((second, _b), (third, _c), (gone, caller), (other, _d)) =
            (group(&["tenant", "user"]), group(&["user"]), group(&["tenant"]), group(&["elsewhere"]));
        assert!(queue.push(second).is_none(), "the tenant is busy");
        assert!(queue.push(third).is_none(), "the user is free, and the group before wants it");
        assert!(queue.push(gone).is_none());
        let (_, other_keys) = queue.push(other).expect("it has no key in common");
        assert!(queue.landed(&other_keys).is_empty(), "no group waits for it");
        drop(caller);
        let mut flights = queue.landed(&first_keys);
        let (next, keys) = flights.pop().expect("groups wait");
        assert!(flights.is_empty());
        assert_eq!(names(&next), ["tenant+user", "user"]);
        assert!(queue.landed(&keys).is_empty());
        assert!(queue.busy.is_empty() && queue.wanted.is_empty() && queue.waiting.is_empty());
    }

    #[test]
    fn groups_beyond_the_work_of_one_call_travel_at_once_in_another() {
        let (mut queue, hasher) = (GroupQueue::default(), KeyedHasher::default());
        let names: Vec<String> = (0..=MAX_WORK).map(|number| format!("user{number}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let (first, _caller) = group(&hasher, &all);
        let (_, keys) = queue.push(first).expect("all keys are free");
        let waiting: Vec<_> = all.iter().map(|key| group(&hasher, &[key])).collect();
        let callers: Vec<Caller> = waiting
            .into_iter()
            .map(|(waiting, caller)| {
                assert!(queue.push(waiting).is_none());
                caller
            })
            .collect();
        let flights = queue.landed(&keys);
        assert!(flights.len() > 1);
        assert_eq!(flights.iter().map(|(groups, _)| groups.len()).sum::<usize>(), callers.len());
        flights.iter().for_each(|(_, keys)| assert!(queue.landed(keys).is_empty()));
        assert!(queue.busy.is_empty() && queue.wanted.is_empty());
    }
}

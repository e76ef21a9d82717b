//! From asks to decisions: what goes to the store, what comes back, and what is
//! said when nothing does.

mod leasing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::OnFailure;
use crate::algorithm::{Answer, Before, Taken};
use crate::ask::Ask;
use crate::clock::{Clock, Stopwatch};
use crate::connection::Deadline;
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::gate_name::GateName;
use crate::key::Keyspace;
use crate::lease::Registry;
use crate::observer::Observer;
use crate::quota::{Quota, Rate};
use crate::store::{GateInfo, Group, Item, Outcome, Store, Target, Write};

/// What a caller who was refused because Redis is away is told to wait.
const CLOSED_RETRY: Duration = Duration::from_secs(1);

/// The longest that a shutdown gives leases back.
const LAST_GIVE_BACK: Duration = Duration::from_secs(6);

/// A group is one call, however many keys it has.
const MOST_ASKS: usize = 128;

pub(crate) struct Core {
    store: Store,
    keyspace: Keyspace,
    deadline: Duration,
    pub(crate) on_failure: OnFailure,
    observer: Option<Arc<dyn Observer>>,
    /// What leases are counted by; with Redis its own clock decides.
    clock: Clock,
    leases: Registry,
    is_shut_down: AtomicBool,
}

impl Core {
    pub(super) fn new(
        store: Store,
        keyspace: Keyspace,
        deadline: Duration,
        on_failure: OnFailure,
        observer: Option<Arc<dyn Observer>>,
        clock: Clock,
    ) -> Self {
        let (leases, is_shut_down) = (Registry::default(), AtomicBool::new(false));
        Self { store, keyspace, deadline, on_failure, observer, clock, leases, is_shut_down }
    }

    pub(crate) fn gate_info(&self, name: &str, quota: Quota) -> Result<Arc<GateInfo>, Error> {
        let prefix = self.keyspace.prefix(name, &quota)?;
        // The prefix was made of it, so it is not too long.
        let name = GateName::new(name).ok_or_else(|| Error::config("a gate's name has at most 64 bytes"))?;
        Ok(Arc::new(GateInfo { name, quota, prefix }))
    }

    /// One decision for each ask, each by itself, in one call where they fit.
    pub(crate) async fn check_each(&self, asks: Vec<Ask>) -> Vec<Result<Decision, Error>> {
        let deadline = self.deadline_of(&asks);
        let groups: Vec<Result<Group, Error>> = asks.iter().map(|ask| Ok(group_of_one(item(ask)?))).collect();
        let sound: Vec<Group> = groups.iter().flatten().cloned().collect();
        let mut outcomes = self.take(&sound, deadline).await.into_iter();
        asks.iter()
            .zip(groups)
            .map(|(ask, group)| {
                let (group, outcome) = match group {
                    Ok(group) => {
                        (group, outcomes.next().unwrap_or_else(|| Err(Error::unavailable("no reply"))))
                    }
                    Err(error) => return Err(about(ask, error)),
                };
                let decided = match outcome {
                    Ok(outcome) => Ok(self.decision(&group.items[0], outcome.before[0], &outcome, group.n)),
                    Err(error) => self.without_store(ask, error),
                };
                if let (Ok(decision), true) = (&decided, group.n > 0) {
                    self.tell_decided(decision);
                }
                decided
            })
            .collect()
    }

    pub(crate) async fn check_all(&self, asks: Vec<Ask>) -> Result<AllDecision, Error> {
        let items = asks.iter().map(|ask| item(ask).map_err(|error| about(ask, error)));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        let Some(first) = asks.first() else {
            return Err(Error::config("check_all was given no ask"));
        };
        if let Some(other) = asks.iter().find(|ask| !std::ptr::eq(&*ask.gate.core, self)) {
            return Err(about(other, Error::config("this gate belongs to another limiter")));
        }
        if asks.len() > MOST_ASKS {
            return Err(Error::config(format!(
                "check_all was given {} asks: one atomic step holds Redis for all others, so give it at most {MOST_ASKS}",
                asks.len()
            )));
        }
        let (folded, index_of) = fold(&asks, items)?;
        let n = u64::from(folded.iter().any(|item| item.cost > 0));
        let group = Group { items: folded, n };
        let outcome = self.take(std::slice::from_ref(&group), self.deadline_of(&asks)).await;
        let (allowed, decisions) = match outcome.into_iter().next() {
            Some(Ok(outcome)) => {
                let decisions = group.items.iter().zip(&outcome.before);
                let decisions = decisions.map(|(item, before)| self.decision(item, *before, &outcome, n));
                let decisions = decisions.collect::<Vec<_>>();
                let allowed = if n > 0 { outcome.k > 0 } else { decisions.iter().all(Decision::is_allowed) };
                (allowed, decisions)
            }
            Some(Err(error)) => {
                // Of a key that holds something else, the error names that key.
                let blamed = (!error.is_unavailable()).then(|| error.item());
                let blamed = blamed.and_then(|item| index_of.iter().position(|&index| index == item));
                let failed = blamed.map_or(&asks[..], |at| std::slice::from_ref(&asks[at]));
                // Collected twice, so that the observer is told of each.
                let decisions: Vec<_> =
                    failed.iter().map(|ask| self.without_store(ask, error.clone())).collect();
                let decisions = decisions.into_iter().collect::<Result<Vec<_>, _>>()?;
                (decisions.iter().all(Decision::is_allowed), decisions)
            }
            None => return Err(about(first, Error::unavailable("no reply"))),
        };
        let decisions: Vec<Decision> = match decisions.len() == asks.len() {
            true => decisions,
            false => index_of.iter().map(|&index| decisions[index].clone()).collect(),
        };
        if n > 0 {
            // Of a denial only who denied: the others admitted nothing.
            let told = decisions.iter().filter(|decision| allowed || !decision.is_allowed());
            told.for_each(|decision| self.tell_decided(decision));
        }
        // What asks nothing cannot bind, unless nothing is asked at all.
        let asked: Vec<usize> = (0..asks.len()).filter(|&at| n == 0 || asks[at].cost > 0).collect();
        let retry_after = asked.iter().map(|&at| decisions[at].retry_after).max().unwrap_or_default();
        Ok(AllDecision { allowed, binding: binding(&asked, &decisions, allowed), retry_after, decisions })
    }

    pub(crate) async fn write(&self, ask: &Ask, write: Write) -> Result<(), Error> {
        let deadline = self.deadline_of(std::slice::from_ref(ask));
        let target = target(ask)?;
        self.open()?;
        self.store.write(&target, write, deadline).await.map_err(|error| {
            let error = about(ask, error);
            self.tell_failed(&target.gate.name, &error);
            error
        })
    }

    pub(crate) fn stopwatch(&self) -> Stopwatch {
        self.store.stopwatch()
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.store.sleep(duration).await;
    }

    pub(super) async fn ready(&self) -> Result<(), Error> {
        const PROBE: Quota = Quota::token_bucket(1, Rate::per_second(1));
        if let Store::Always { .. } = self.store {
            return self.open();
        }
        let gate = self.gate_info("ready", PROBE)?;
        let target = Target { redis_key: gate.prefix.key(b""), gate };
        let peek = Group { items: vec![Item { target, cost: 1, max_delay_us: None }], n: 0 };
        let mut outcomes = self.take(&[peek], Deadline::new(self.deadline)).await;
        outcomes.pop().unwrap_or_else(|| Err(Error::unavailable("no reply"))).map(drop)
    }

    pub(super) async fn shutdown(&self) {
        self.is_shut_down.store(true, Ordering::Release);
        self.leases.end(LAST_GIVE_BACK).await;
        self.store.close();
    }

    async fn take(&self, groups: &[Group], deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        if let Err(error) = self.open() {
            return vec![Err(error); groups.len()];
        }
        let Some(observer) = self.observer.as_ref().filter(|_| !groups.is_empty()) else {
            return self.store.take(groups, deadline).await;
        };
        let start = Instant::now();
        let outcomes = self.store.take(groups, deadline).await;
        observer.called(groups.len(), start.elapsed());
        outcomes
    }

    fn open(&self) -> Result<(), Error> {
        match self.is_shut_down.load(Ordering::Acquire) {
            true => Err(Error::shut_down()),
            false => Ok(()),
        }
    }

    fn deadline_of(&self, asks: &[Ask]) -> Deadline {
        let shortest = asks.iter().filter_map(|ask| ask.deadline).min();
        Deadline::new(shortest.unwrap_or(self.deadline))
    }

    /// The decision for a group's only caller, as far as this item decides it.
    /// Of an item alone the store's word counts: it has charged what it admitted.
    fn decision(&self, item: &Item, before: Before, outcome: &Outcome, n: u64) -> Decision {
        let gate = &item.target.gate;
        let taken = Taken {
            quota: &gate.quota,
            cost: item.cost,
            max_delay: item.max_delay_us,
            n,
            k: outcome.k,
            before,
            now: outcome.now_us,
        };
        let Answer { remaining, retry_after_us, reset_after_us, delay_us, .. } = taken.answer(0);
        let is_alone = outcome.before.len() == 1;
        let allowed = if n > 0 && is_alone { outcome.k > 0 } else { taken.affords_one() };
        Decision {
            gate: gate.name,
            allowed,
            limit: gate.quota.limit(),
            remaining,
            retry_after: Duration::from_micros(retry_after_us),
            reset_after: Duration::from_micros(reset_after_us),
            delay: Duration::from_micros(delay_us),
            source: if matches!(self.store, Store::Redis(_)) { Source::Redis } else { Source::Memory },
            shadow: false,
            now_us: outcome.now_us,
        }
    }

    /// What to say of an ask that the store did not answer.
    fn without_store(&self, ask: &Ask, error: Error) -> Result<Decision, Error> {
        let info = ask.gate.info()?;
        let error = about(ask, error);
        if !matches!(self.store, Store::Always { .. }) {
            self.tell_failed(&info.name, &error);
        }
        let on_failure = match self.store {
            Store::Always { allowed } if allowed => OnFailure::Open,
            Store::Always { .. } => OnFailure::Closed,
            _ => ask.gate.on_failure,
        };
        let (allowed, source) = match on_failure {
            _ if !error.is_unavailable() => return Err(error),
            OnFailure::Error => return Err(error),
            OnFailure::Open => (true, Source::Open),
            OnFailure::Closed => (false, Source::Closed),
        };
        Ok(Decision {
            gate: info.name,
            allowed,
            limit: info.quota.limit(),
            remaining: if allowed { info.quota.limit() } else { 0 },
            retry_after: if allowed { Duration::ZERO } else { CLOSED_RETRY },
            reset_after: if allowed { Duration::ZERO } else { CLOSED_RETRY },
            delay: Duration::ZERO,
            source,
            shadow: false,
            now_us: 0,
        })
    }

    fn tell_decided(&self, decision: &Decision) {
        if let Some(observer) = &self.observer {
            observer.decided(decision);
        }
    }

    fn tell_failed(&self, gate: &str, error: &Error) {
        if let Some(observer) = &self.observer {
            observer.failed(gate, error);
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("store", &self.store)
            .field("keyspace", &self.keyspace)
            .finish_non_exhaustive()
    }
}

fn target(ask: &Ask) -> Result<Target, Error> {
    let gate = ask.gate.info()?.clone();
    Ok(Target { redis_key: gate.prefix.key(&ask.key), gate })
}

fn item(ask: &Ask) -> Result<Item, Error> {
    let target = target(ask)?;
    check_cost(ask.cost, &target.gate.quota)?;
    // Beyond what any clock shows; a longer one means the same.
    let max_delay_us =
        ask.max_delay.map(|delay| u64::try_from(delay.as_micros()).unwrap_or(u64::MAX).min(1 << 52));
    Ok(Item { target, cost: ask.cost, max_delay_us })
}

fn check_cost(cost: u64, quota: &Quota) -> Result<(), Error> {
    match cost > quota.limit() {
        true => Err(Error::over_capacity(cost, quota.limit())),
        false => Ok(()),
    }
}

/// A cost of nothing asks nothing: a peek at what one unit would get.
fn group_of_one(item: Item) -> Group {
    let n = u64::from(item.cost > 0);
    Group { items: vec![Item { cost: item.cost.max(1), ..item }], n }
}

/// One item per Redis key, costs summed, and for each ask the item it went into.
fn fold(asks: &[Ask], items: Vec<Item>) -> Result<(Vec<Item>, Vec<usize>), Error> {
    let mut folded: Vec<Item> = Vec::with_capacity(items.len());
    let mut index_of = Vec::with_capacity(items.len());
    for (ask, item) in asks.iter().zip(items) {
        let same = folded.iter().position(|other| other.target.redis_key == item.target.redis_key);
        let Some(index) = same else {
            index_of.push(folded.len());
            folded.push(item);
            continue;
        };
        let other = &mut folded[index];
        if other.target.gate.quota != item.target.gate.quota {
            let text = "the same key is asked for under two quotas in one check_all: give the gates names of their own";
            return Err(about(ask, Error::config(text)));
        }
        other.cost = other.cost.saturating_add(item.cost);
        check_cost(other.cost, &item.target.gate.quota).map_err(|error| about(ask, error))?;
        other.max_delay_us = match (other.max_delay_us, item.max_delay_us) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        index_of.push(index);
    }
    Ok((folded, index_of))
}

/// When denied, the longest to wait for; when allowed, the smallest share left;
/// the first of equals.
fn binding(asked: &[usize], decisions: &[Decision], allowed: bool) -> usize {
    let tighter = |a: &Decision, b: &Decision| match allowed {
        true => u128::from(a.remaining) * u128::from(b.limit) < u128::from(b.remaining) * u128::from(a.limit),
        false => a.retry_after > b.retry_after,
    };
    let tightest = |best, at| if tighter(&decisions[at], &decisions[best]) { at } else { best };
    asked.iter().copied().reduce(tightest).unwrap_or(0)
}

fn about(ask: &Ask, error: Error) -> Error {
    match ask.gate.info() {
        Ok(info) => error.about(info.name, &ask.key),
        Err(_) => error,
    }
}

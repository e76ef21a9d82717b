//! From asks to decisions: what goes to the store, what comes back, and what is
//! said when nothing does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::OnFailure;
use crate::algorithm::{Answer, Taken};
use crate::ask::{Ask, AskRef};
use crate::batch::{Batch, Share};
use crate::clock::Stopwatch;
use crate::connection::Deadline;
use crate::decision::{AllDecision, Decision, Source};
use crate::deny_cache::{Asked, DenyCache};
use crate::error::Error;
use crate::gate_name::GateName;
use crate::key::Keyspace;
use crate::observer::Observer;
use crate::quota::{Quota, Rate};
use crate::store::{GateInfo, Group, Item, Store, Target, Write};

/// What a caller who was refused because Redis is away is told to wait.
const CLOSED_RETRY: Duration = Duration::from_secs(1);

/// A group is one call, however many keys it has.
const MOST_ASKS: usize = 128;

pub(crate) struct Core {
    store: Arc<Store>,
    batch: Batch,
    deny_cache: Option<DenyCache>,
    keyspace: Keyspace,
    deadline: Duration,
    pub(crate) on_failure: OnFailure,
    observer: Option<Arc<dyn Observer>>,
    is_shut_down: AtomicBool,
}

impl Core {
    pub(super) fn new(
        store: Arc<Store>,
        batch: Batch,
        deny_cache: Option<DenyCache>,
        keyspace: Keyspace,
        deadline: Duration,
        on_failure: OnFailure,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let is_shut_down = AtomicBool::new(false);
        Self { store, batch, deny_cache, keyspace, deadline, on_failure, observer, is_shut_down }
    }

    pub(crate) fn gate_info(&self, name: &str, quota: Quota) -> Result<Arc<GateInfo>, Error> {
        let prefix = self.keyspace.prefix(name, &quota)?;
        // The prefix was made of it, so it is not too long.
        let name = GateName::new(name).ok_or_else(|| Error::config("a gate's name has at most 64 bytes"))?;
        Ok(Arc::new(GateInfo { name, quota, prefix }))
    }

    pub(crate) async fn check(&self, ask: AskRef<'_>) -> Result<Decision, Error> {
        let asked = self.deny_cache.as_ref().map(DenyCache::asked);
        match self.prepare(ask)? {
            Prepared::Denied(decision) => {
                // Who asks in a loop should let others run now and then.
                tokio::task::coop::consume_budget().await;
                Ok(decision)
            }
            Prepared::Ask(group) => {
                let shared = match self.open() {
                    Ok(()) => self.batch.take(group, self.deadline_of(ask.deadline)).await,
                    Err(error) => Err(error),
                };
                self.conclude(ask, asked, shared)
            }
        }
    }

    /// One decision for each ask, each by itself.
    pub(crate) async fn check_each(&self, asks: &[AskRef<'_>]) -> Vec<Result<Decision, Error>> {
        let asked = self.deny_cache.as_ref().map(DenyCache::asked);
        let mut groups = Vec::with_capacity(asks.len());
        let decided: Vec<_> = asks
            .iter()
            .map(|ask| match self.prepare(*ask) {
                Err(error) => Some(Err(error)),
                Ok(Prepared::Denied(decision)) => Some(Ok(decision)),
                Ok(Prepared::Ask(group)) => {
                    groups.push(group);
                    None
                }
            })
            .collect();
        let deadline = self.deadline_of(asks.iter().filter_map(|ask| ask.deadline).min());
        let shares = match self.open() {
            Ok(()) => self.batch.take_each(groups, deadline).await,
            Err(error) => vec![Err(error); groups.len()],
        };
        let mut shares = shares.into_iter();
        let mut next = || shares.next().unwrap_or_else(|| Err(Error::unavailable("no reply")));
        let decided = asks.iter().zip(decided);
        decided.map(|(ask, decided)| decided.unwrap_or_else(|| self.conclude(*ask, asked, next()))).collect()
    }

    pub(crate) async fn check_all(&self, asks: Vec<Ask>) -> Result<AllDecision, Error> {
        let items = asks.iter().map(|ask| item(ask.as_ref()).map_err(|error| about(ask.as_ref(), error)));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        if asks.is_empty() {
            return Err(Error::config("check_all was given no ask"));
        }
        if let Some(other) = asks.iter().find(|ask| !std::ptr::eq(&*ask.gate.core, self)) {
            return Err(about(other.as_ref(), Error::config("this gate belongs to another limiter")));
        }
        if asks.len() > MOST_ASKS {
            return Err(Error::config(format!(
                "check_all was given {} asks: one atomic step holds Redis for all others, so give it at most {MOST_ASKS}",
                asks.len()
            )));
        }
        let (folded, index_of) = fold(&asks, items)?;
        let n = u64::from(folded.iter().any(|item| item.cost > 0));
        let group = Group { items: folded.iter().cloned().collect(), n };
        let deadline = self.deadline_of(asks.iter().filter_map(|ask| ask.deadline).min());
        let shared = match self.open() {
            Ok(()) => self.batch.take(group, deadline).await,
            Err(error) => Err(error),
        };
        let (allowed, decisions) = match shared {
            Ok(share) => {
                let decisions = folded.iter().enumerate().map(|(at, item)| self.decision(item, at, &share));
                let decisions = decisions.collect::<Vec<_>>();
                let allowed = match n {
                    0 => decisions.iter().all(Decision::is_allowed),
                    _ => share.index < share.outcome.k,
                };
                (allowed, decisions)
            }
            Err(error) => {
                // Of a key that holds something else, the error names that key.
                let blamed = (!error.is_unavailable()).then(|| error.item());
                let blamed = blamed.and_then(|item| index_of.iter().position(|&index| index == item));
                let failed = blamed.map_or(&asks[..], |at| std::slice::from_ref(&asks[at]));
                // Collected twice, so that the observer is told of each.
                let decisions: Vec<_> =
                    failed.iter().map(|ask| self.without_store(ask.as_ref(), error.clone())).collect();
                let decisions = decisions.into_iter().collect::<Result<Vec<_>, _>>()?;
                (decisions.iter().all(Decision::is_allowed), decisions)
            }
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

    pub(crate) async fn write(&self, ask: AskRef<'_>, write: Write) -> Result<(), Error> {
        let target = target(ask)?;
        self.open()?;
        let written = self.store.write(&target, write, self.deadline_of(ask.deadline)).await;
        if let Some(deny_cache) = &self.deny_cache {
            deny_cache.forget(&target.redis_key);
        }
        written.map_err(|error| {
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
        if let Store::Always { .. } = *self.store {
            return self.open();
        }
        let gate = self.gate_info("ready", PROBE)?;
        let target = Target { redis_key: gate.prefix.key(b""), gate };
        let peek = Group::of_one(Item { target, cost: 0, max_delay_us: None });
        self.open()?;
        self.batch.take(peek, Deadline::new(self.deadline)).await.map(drop)
    }

    pub(super) fn shutdown(&self) {
        self.is_shut_down.store(true, Ordering::Release);
        self.store.close();
    }

    fn open(&self) -> Result<(), Error> {
        match self.is_shut_down.load(Ordering::Acquire) {
            true => Err(Error::shut_down()),
            false => Ok(()),
        }
    }

    fn deadline_of(&self, own: Option<Duration>) -> Deadline {
        Deadline::new(own.unwrap_or(self.deadline))
    }

    /// What to ask the store, if it has to be asked.
    fn prepare(&self, ask: AskRef<'_>) -> Result<Prepared, Error> {
        let item = item(ask).map_err(|error| about(ask, error))?;
        let denied = match &self.deny_cache {
            Some(deny_cache) if ask.cost > 0 && self.open().is_ok() => deny_cache.find(&item),
            _ => None,
        };
        let Some((answer, now_us)) = denied else {
            return Ok(Prepared::Ask(Group::of_one(item)));
        };
        let decision = decision(&item.target.gate, answer, Source::DenyCache, now_us);
        self.tell_decided(&decision);
        Ok(Prepared::Denied(decision))
    }

    /// The decision on an ask for one key.
    fn conclude(
        &self,
        ask: AskRef<'_>,
        asked: Option<Asked>,
        shared: Result<Share, Error>,
    ) -> Result<Decision, Error> {
        let decided = match shared {
            Ok(share) => {
                let item = item(ask)?;
                let decision = self.decision(&item, 0, &share);
                if let (Some(deny_cache), Some(asked)) = (&self.deny_cache, asked)
                    && ask.cost > 0
                    && !decision.allowed
                {
                    deny_cache.remember(asked, item, &share);
                }
                Ok(decision)
            }
            Err(error) => self.without_store(ask, error),
        };
        if let (Ok(decision), true) = (&decided, ask.cost > 0) {
            self.tell_decided(decision);
        }
        decided
    }

    /// A caller's decision, as far as the group's item at `at` decides it.
    /// Of an item alone the store's word counts: it has charged what it admitted.
    fn decision(&self, item: &Item, at: usize, share: &Share) -> Decision {
        let Share { outcome, n, index, .. } = share;
        let taken = Taken {
            quota: &item.target.gate.quota,
            cost: item.cost,
            max_delay: item.max_delay_us,
            n: *n,
            k: outcome.k,
            before: outcome.before[at],
            now: outcome.now_us,
        };
        let mut answer = taken.answer(*index);
        let is_alone = outcome.before.len() == 1;
        answer.allowed = if *n > 0 && is_alone { *index < outcome.k } else { taken.affords(*index) };
        let source = if matches!(*self.store, Store::Redis(_)) { Source::Redis } else { Source::Memory };
        decision(&item.target.gate, answer, source, outcome.now_us)
    }

    /// What to say of an ask that the store did not answer.
    fn without_store(&self, ask: AskRef<'_>, error: Error) -> Result<Decision, Error> {
        let info = ask.gate.info()?;
        let error = about(ask, error);
        if !matches!(*self.store, Store::Always { .. }) {
            self.tell_failed(&info.name, &error);
        }
        let on_failure = match *self.store {
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

/// What an ask comes to before the store is asked.
enum Prepared {
    Ask(Group),
    Denied(Decision),
}

fn decision(gate: &GateInfo, answer: Answer, source: Source, now_us: u64) -> Decision {
    Decision {
        gate: gate.name,
        allowed: answer.allowed,
        limit: gate.quota.limit(),
        remaining: answer.remaining,
        retry_after: Duration::from_micros(answer.retry_after_us),
        reset_after: Duration::from_micros(answer.reset_after_us),
        delay: Duration::from_micros(answer.delay_us),
        source,
        shadow: false,
        now_us,
    }
}

fn target(ask: AskRef<'_>) -> Result<Target, Error> {
    let gate = ask.gate.info()?.clone();
    Ok(Target { redis_key: gate.prefix.key(ask.key), gate })
}

fn item(ask: AskRef<'_>) -> Result<Item, Error> {
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
            return Err(about(ask.as_ref(), Error::config(text)));
        }
        other.cost = other.cost.saturating_add(item.cost);
        check_cost(other.cost, &item.target.gate.quota).map_err(|error| about(ask.as_ref(), error))?;
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

fn about(ask: AskRef<'_>, error: Error) -> Error {
    match ask.gate.info() {
        Ok(info) => error.about(info.name, ask.key),
        Err(_) => error,
    }
}

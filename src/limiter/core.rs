//! From checks to decisions: the calls to the store, its answers, and the result if the store does not
//! answer.

mod answers;
mod asking;
mod leasing;
mod ordered;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::Either;

#[cfg(feature = "rules")]
pub(crate) use self::answers::CLOSED_RETRY_US;
pub(super) use self::answers::undecided;
use super::OnFailure;
use crate::ask::AskRef;
use crate::background::Background;
use crate::batch::{Batch, Share};
use crate::breaker::{self, Breaker};
use crate::clock::{Clock, Stopwatch};
use crate::connection::Deadline;
use crate::decision::{Decision, Source};
use crate::deny_cache::{Asked, DenyCache};
use crate::error::Error;
use crate::fallback::{self, Fallback, Instances};
use crate::fingerprint::Fingerprints;
use crate::key::Keyspace;
use crate::lease::Registry;
use crate::observer::Observer;
use crate::orders::{self, Orders};
use crate::quota::Quota;
use crate::store::{GateInfo, Group, Item, Outcome, Store, Target, Write};
use crate::trace::Span;

pub(crate) struct Core {
    store: Arc<Store>,
    batch: Batch,
    deny_cache: Option<DenyCache>,
    /// `breaker` and `fallback` are set if the store can fail.
    breaker: Option<Arc<Breaker>>,
    fallback: Option<Fallback>,
    orders: Orders,
    background: Arc<Background>,
    /// A peek that any working store can answer.
    probe: Group,
    keyspace: Keyspace,
    fingerprints: Fingerprints,
    deadline: Duration,
    pub(crate) on_failure: OnFailure,
    observer: Option<Arc<dyn Observer>>,
    /// The clock for leases; with Redis its own clock decides.
    clock: Clock,
    leases: Registry,
    is_shut_down: AtomicBool,
}

/// The settings of a limiter that do not depend on the store.
pub(super) struct Settings {
    pub(super) background: Arc<Background>,
    pub(super) keyspace: Keyspace,
    pub(super) deadline: Duration,
    pub(super) on_failure: OnFailure,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) clock: Clock,
    pub(super) max_keys: usize,
    /// `None`: the processes are counted.
    pub(super) instances: Option<u64>,
    pub(super) breaker: bool,
    pub(super) orders: bool,
}

impl Core {
    pub(super) fn new(
        store: Arc<Store>,
        batch: Batch,
        deny_cache: Option<DenyCache>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let Settings { background, keyspace, deadline, on_failure, observer, clock, max_keys, .. } = settings;
        let fingerprints = Fingerprints::default();
        let probes = asking::probes(&keyspace, &fingerprints)?;
        let probe = probes[0].clone();
        let can_fail = matches!(*store, Store::Redis(_));
        let breaker = can_fail.then(|| {
            Arc::new(Breaker::new(breaker::Settings {
                store: store.clone(),
                probes,
                deadline,
                observer: observer.clone(),
                background: background.clone(),
                is_enabled: settings.breaker,
            }))
        });
        let orders = Orders::new(orders::Settings {
            store: store.clone(),
            breaker: breaker.clone(),
            clock: clock.clone(),
            deadline,
            observer: observer.clone(),
            key: keyspace.orders(),
            background: background.clone(),
            follow: settings.orders,
        });
        let fallback = breaker.clone().map(|breaker| {
            Fallback::new(fallback::Settings {
                store: store.clone(),
                breaker,
                clock: clock.clone(),
                deadline,
                observer: observer.clone(),
                instances: match settings.instances {
                    Some(instances) => Instances::given(instances),
                    None => Instances::counted(keyspace.instances()),
                },
                max_keys,
                background: background.clone(),
            })
        });
        Ok(Self {
            store,
            batch,
            deny_cache,
            breaker,
            fallback,
            orders,
            background,
            probe,
            keyspace,
            fingerprints,
            deadline,
            on_failure,
            observer,
            clock,
            leases: Registry::default(),
            is_shut_down: AtomicBool::new(false),
        })
    }

    pub(crate) fn gate_info(&self, name: &str, quota: Quota) -> Result<GateInfo, Error> {
        GateInfo::new(&self.keyspace, &self.fingerprints, name, quota)
    }

    pub(crate) async fn check(&self, ask: &AskRef<'_>) -> Result<Decision, Error> {
        let span = Span::of_ask(ask.cost);
        let decided = self.decide(ask).await;
        let decided = self.told(*ask, decided);
        span.decided(decided.as_ref());
        decided
    }

    /// Does the same as [`check`](Self::check) without notifying the observer. Runs everything before the
    /// first await eagerly, which keeps the future small.
    fn decide<'a>(&'a self, ask: &'a AskRef<'a>) -> impl Future<Output = Result<Decision, Error>> + 'a {
        let decided = match self.prepare(*ask) {
            Ok(Prepared::Ask(group, asked)) => match self.ensure_sendable(&group) {
                Ok(tag) => {
                    let (since_us, taking) = self.ask_store(group, self.deadline_of(ask.deadline));
                    return Either::Left(async move {
                        let shared = taking.await;
                        self.store_answered(tag, &shared, since_us, ask.deadline.unwrap_or(self.deadline));
                        self.conclude(*ask, asked, shared)
                    });
                }
                Err(error) => self.without_store(*ask, group.items.into_iter().next(), error),
            },
            Ok(Prepared::Denied(decision)) => Ok(decision),
            Err(error) => Err(error),
        };
        Either::Right(async move {
            // Lets other tasks run if a caller checks in a loop.
            tokio::task::coop::consume_budget().await;
            decided
        })
    }

    /// Returns a cached denial that still holds.
    pub(crate) fn remembered(&self, ask: AskRef<'_>) -> Option<Decision> {
        self.deny_cache.as_ref()?;
        match self.prepare(ask) {
            Ok(Prepared::Denied(decision)) => self.told_at_once(ask, Ok(decision)).ok(),
            _ => None,
        }
    }

    /// Returns one decision per check, each made independently.
    pub(crate) async fn check_each(&self, asks: &[AskRef<'_>]) -> Vec<Result<Decision, Error>> {
        let span = Span::of_many(asks.len());
        let decided = match self.has_orders() {
            false => self.decide_each(asks).await,
            true => Box::pin(self.check_each_under_orders(asks)).await,
        };
        span.many_decided(&decided);
        decided
    }

    /// Does the same as [`check_each`](Self::check_each), ignoring operators' overrides.
    async fn decide_each(&self, asks: &[AskRef<'_>]) -> Vec<Result<Decision, Error>> {
        let (mut groups, mut asked) = (Vec::with_capacity(asks.len()), Vec::with_capacity(asks.len()));
        let decided: Vec<_> = asks
            .iter()
            .map(|ask| match self.prepare(*ask) {
                Err(error) => Some(Err(error)),
                Ok(Prepared::Denied(decision)) => Some(Ok(decision)),
                Ok(Prepared::Ask(group, since)) => {
                    groups.push(group);
                    asked.push(since);
                    None
                }
            })
            .collect();
        let deadline = self.deadline_of(asks.iter().filter_map(|ask| ask.deadline).min());
        let shares = self.take_each(groups, deadline).await;
        let mut shares = shares.into_iter().zip(asked);
        let mut next = || shares.next().unwrap_or_else(|| (Err(Error::unavailable("no reply")), None));
        let decided = asks.iter().zip(decided);
        decided
            .map(|(ask, decided)| {
                let conclude = |(share, asked)| self.conclude(*ask, asked, share);
                self.told(*ask, decided.unwrap_or_else(|| conclude(next())))
            })
            .collect()
    }

    pub(crate) async fn write(&self, ask: AskRef<'_>, write: Write) -> Result<(), Error> {
        let target = Target::new(ask.gate.info()?, ask.key, ask.beside);
        self.open()?;
        let _forgotten = Forgotten(self.deny_cache.as_ref(), &target);
        let deadline = self.deadline_of(ask.deadline);
        self.ensure_background_jobs();
        let written = match self.ensure_available(target.place) {
            Ok(()) => self.store.write(&target, write, deadline).await,
            Err(error) => Err(error),
        };
        self.record(target.place, &written, deadline.after);
        written.map(drop).map_err(|error| {
            let error = about(ask, error);
            self.tell_failed(&target.gate.name, &error);
            error
        })
    }

    #[cfg(feature = "cli")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    #[cfg(feature = "cli")]
    pub(crate) const fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    pub(crate) fn stopwatch(&self) -> Stopwatch {
        self.store.stopwatch()
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.store.sleep(duration).await;
    }

    pub(crate) fn deadline_of(&self, own: Option<Duration>) -> Deadline {
        Deadline::new(own.unwrap_or(self.deadline))
    }

    pub(super) fn item(&self, ask: AskRef<'_>) -> Result<Item, Error> {
        let target = Target::new(ask.gate.info()?, ask.key, ask.beside);
        check_cost(ask.cost, &target.gate.quota)?;
        let max_delay_us = max_delay_us(ask, &target.gate.quota);
        Ok(Item { target, cost: ask.cost, max_delay_us })
    }

    /// Removes earlier cached denials of the charged keys. Called for charges that
    /// [`conclude`](Self::conclude) does not process.
    pub(in crate::limiter) fn charged(&self, items: &[Item], outcome: &Outcome) {
        if let Some(deny_cache) = self.deny_cache.as_ref().filter(|_| outcome.k > 0) {
            let charged = items.iter().filter(|item| item.cost > 0);
            charged.for_each(|item| deny_cache.charged(&item.target, outcome.now_us));
        }
    }

    /// Returns the group to send to the store, or a cached denial.
    fn prepare(&self, ask: AskRef<'_>) -> Result<Prepared, Error> {
        let item = self.item(ask).map_err(|error| about(ask, error))?;
        let denied = match &self.deny_cache {
            Some(deny_cache) if ask.cost > 0 && self.open().is_ok() => deny_cache.find(&item),
            _ => None,
        };
        let Some((answer, now_us)) = denied else {
            let asked = self.deny_cache.as_ref().map(|deny_cache| deny_cache.asked(&item));
            return Ok(Prepared::Ask(Group::of_one(item), asked));
        };
        Ok(Prepared::Denied(answers::decision(&item.target.gate, answer, Source::DenyCache, now_us)))
    }

    /// Returns the decision on a check of one key, and records the key's state.
    fn conclude(
        &self,
        ask: AskRef<'_>,
        asked: Option<Asked>,
        shared: Result<Share, Error>,
    ) -> Result<Decision, Error> {
        match shared {
            Ok(share) => {
                let gate = ask.gate.info()?;
                let wanted = (ask.cost.max(1), max_delay_us(ask, &gate.quota));
                let decision = self.decision(gate, wanted, 0, &share);
                if let Some(fallback) = self.fallback.as_ref().filter(|_| share.index == 0) {
                    // One caller of a merged call records for all of them: the state after the last check.
                    let last = (share.n > 1).then(|| Share { index: share.n - 1, ..share.clone() });
                    let last = last.map(|last| self.decision(gate, wanted, 0, &last));
                    let last = last.as_ref().unwrap_or(&decision);
                    if Fallback::is_worth_noting(last) {
                        fallback.note(&self.item(ask)?.target, last, &share.outcome.before[0]);
                    }
                }
                if let (Some(deny_cache), Some(asked)) = (&self.deny_cache, asked)
                    && ask.cost > 0
                {
                    if !decision.allowed {
                        deny_cache.remember(asked, self.item(ask)?, &share);
                    } else if deny_cache.records_charges(asked) {
                        deny_cache.charged(&self.item(ask)?.target, share.outcome.now_us);
                    }
                }
                Ok(decision)
            }
            Err(error) => self.without_store(ask, None, error),
        }
    }

    /// Does the same as [`told`](Self::told) for a check that was decided without waiting.
    pub(crate) fn told_at_once(
        &self,
        ask: AskRef<'_>,
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        let decided = self.told(ask, decided);
        Span::of_ask(ask.cost).decided(decided.as_ref());
        decided
    }

    /// Applies shadow mode and notifies the observer. Peeks are not reported.
    pub(crate) fn told(
        &self,
        ask: AskRef<'_>,
        mut decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        if let (Ok(decision), true) = (&mut decided, ask.gate.is_shadow) {
            decision.shadow = !decision.allowed;
            decision.allowed = true;
        }
        if let (Ok(decision), true) = (&decided, ask.cost > 0) {
            self.tell_decided(decision);
            self.tell_denied(ask, decision);
        }
        decided
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("store", &self.store)
            .field("keyspace", &self.keyspace)
            .field("breaker", &self.breaker)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

/// Removes cached denials of a key that was written, also if the caller drops its future.
struct Forgotten<'a>(Option<&'a DenyCache>, &'a Target);

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        if let Some(deny_cache) = self.0 {
            deny_cache.forget(self.1);
        }
    }
}

/// The result of preparing a check before the store is called.
enum Prepared {
    Ask(Group, Option<Asked>),
    Denied(Decision),
}

/// Returns the longest accepted delay, capped at 2^52 µs, which is beyond any clock.
///
/// `None` where the algorithm has no delay: checks that differ in nothing else are equal, so they merge and
/// share cached denials.
fn max_delay_us(ask: AskRef<'_>, quota: &Quota) -> Option<u64> {
    let delay = ask.max_delay.filter(|_| quota.has_queue())?;
    Some(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX).min(1 << 52))
}

pub(super) fn check_cost(cost: u64, quota: &Quota) -> Result<(), Error> {
    match cost > quota.limit() {
        true => Err(Error::over_capacity(cost, quota.limit())),
        false => Ok(()),
    }
}

pub(super) fn about(ask: AskRef<'_>, error: Error) -> Error {
    match ask.gate.info() {
        Ok(info) => error.about(info.name, ask.key),
        Err(_) => error,
    }
}

//! From checks to decisions: the calls to the store, its answers, and the result if the store does not
//! answer.

mod answers;
mod leasing;
mod overridden;
mod sending;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::Either;

#[cfg(feature = "rules")]
pub(crate) use self::answers::CLOSED_RETRY_US;
pub(super) use self::answers::static_decision;
use super::OnFailure;
use crate::background::Background;
use crate::batch::{Batch, Share};
use crate::breaker::{self, Breaker};
use crate::check::CheckRef;
use crate::clock::{Clock, Stopwatch};
use crate::connection::Deadline;
use crate::decision::{Decision, Source};
use crate::deny_cache::{Charges, DenyCache};
use crate::error::Error;
use crate::fallback::{self, Fallback, Instances};
use crate::key::Keyspace;
use crate::keyed_hash::KeyedHasher;
use crate::lease::Registry;
use crate::observer::Observer;
use crate::overrides::{self, Overrides};
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
    overrides: Overrides,
    background: Arc<Background>,
    /// A peek that any working store can answer.
    probe: Group,
    keyspace: Keyspace,
    keyed_hasher: KeyedHasher,
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
    pub(super) overrides: bool,
}

impl Core {
    pub(super) fn new(
        store: Arc<Store>,
        batch: Batch,
        deny_cache: Option<DenyCache>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let Settings { background, keyspace, deadline, on_failure, observer, clock, max_keys, .. } = settings;
        let keyed_hasher = KeyedHasher::default();
        let probes = sending::probes(&keyspace, &keyed_hasher)?;
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
        let overrides = Overrides::new(overrides::Settings {
            store: store.clone(),
            breaker: breaker.clone(),
            clock: clock.clone(),
            deadline,
            observer: observer.clone(),
            key: keyspace.overrides(),
            background: background.clone(),
            follow: settings.overrides,
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
            overrides,
            background,
            probe,
            keyspace,
            keyed_hasher,
            deadline,
            on_failure,
            observer,
            clock,
            leases: Registry::default(),
            is_shut_down: AtomicBool::new(false),
        })
    }

    pub(crate) fn gate_info(&self, name: &str, quota: Quota) -> Result<GateInfo, Error> {
        GateInfo::new(&self.keyspace, &self.keyed_hasher, name, quota)
    }

    pub(crate) async fn check(&self, check: &CheckRef<'_>) -> Result<Decision, Error> {
        let span = Span::of_check(check.cost);
        let decided = self.decide(check).await;
        let decided = self.report(*check, decided);
        span.decided(decided.as_ref());
        decided
    }

    /// Does the same as [`check`](Self::check) without notifying the observer. Runs everything before the
    /// first await eagerly, which keeps the future small.
    fn decide<'a>(&'a self, check: &'a CheckRef<'a>) -> impl Future<Output = Result<Decision, Error>> + 'a {
        let decided = match self.prepare(*check) {
            Ok(Prepared::Check(group, charges)) => match self.ensure_sendable(&group) {
                Ok(hash_tag) => {
                    let (since_us, taking) = self.call_store(group, self.deadline_of(check.deadline));
                    return Either::Left(async move {
                        let shared = taking.await;
                        self.store_answered(
                            hash_tag,
                            &shared,
                            since_us,
                            check.deadline.unwrap_or(self.deadline),
                        );
                        self.conclude(*check, charges, shared)
                    });
                }
                Err(error) => self.fallback_decision(*check, group.items.into_iter().next(), error),
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
    pub(crate) fn cached_denial(&self, check: CheckRef<'_>) -> Option<Decision> {
        self.deny_cache.as_ref()?;
        match self.prepare(check) {
            Ok(Prepared::Denied(decision)) => self.report_immediate(check, Ok(decision)).ok(),
            _ => None,
        }
    }

    /// Returns one decision per check, each made independently.
    pub(crate) async fn check_each(&self, checks: &[CheckRef<'_>]) -> Vec<Result<Decision, Error>> {
        let span = Span::of_many(checks.len());
        let decided = match self.has_overrides() {
            false => self.decide_each(checks).await,
            true => Box::pin(self.check_each_with_overrides(checks)).await,
        };
        span.many_decided(&decided);
        decided
    }

    /// Does the same as [`check_each`](Self::check_each), ignoring operators' overrides.
    async fn decide_each(&self, checks: &[CheckRef<'_>]) -> Vec<Result<Decision, Error>> {
        let (mut groups, mut charges) = (Vec::with_capacity(checks.len()), Vec::with_capacity(checks.len()));
        let decided: Vec<_> = checks
            .iter()
            .map(|check| match self.prepare(*check) {
                Err(error) => Some(Err(error)),
                Ok(Prepared::Denied(decision)) => Some(Ok(decision)),
                Ok(Prepared::Check(group, since)) => {
                    groups.push(group);
                    charges.push(since);
                    None
                }
            })
            .collect();
        let deadline = self.deadline_of(checks.iter().filter_map(|check| check.deadline).min());
        let shares = self.take_each(groups, deadline).await;
        let mut shares = shares.into_iter().zip(charges);
        let mut next = || shares.next().unwrap_or_else(|| (Err(Error::unavailable("no reply")), None));
        let decided = checks.iter().zip(decided);
        decided
            .map(|(check, decided)| {
                let conclude = |(share, charges)| self.conclude(*check, charges, share);
                self.report(*check, decided.unwrap_or_else(|| conclude(next())))
            })
            .collect()
    }

    pub(crate) async fn write(&self, check: CheckRef<'_>, write: Write) -> Result<(), Error> {
        let target = Target::new(check.gate.info()?, check.key, check.colocate_with);
        self.ensure_open()?;
        let _forget = ForgetOnDrop(self.deny_cache.as_ref(), &target);
        let deadline = self.deadline_of(check.deadline);
        self.ensure_background_jobs();
        let written = match self.ensure_available(target.hash_tag) {
            Ok(()) => self.store.write(&target, write, deadline).await,
            Err(error) => Err(error),
        };
        self.record(target.hash_tag, &written, deadline.after);
        written.map(drop).map_err(|error| {
            let error = with_context(check, error);
            self.notify_failed(&target.gate.name, &error);
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

    pub(super) fn item(&self, check: CheckRef<'_>) -> Result<Item, Error> {
        let target = Target::new(check.gate.info()?, check.key, check.colocate_with);
        check_cost(check.cost, &target.gate.quota)?;
        let max_delay_us = max_delay_us(check, &target.gate.quota);
        Ok(Item { target, cost: check.cost, max_delay_us })
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
    fn prepare(&self, check: CheckRef<'_>) -> Result<Prepared, Error> {
        let item = self.item(check).map_err(|error| with_context(check, error))?;
        let denied = match &self.deny_cache {
            Some(deny_cache) if check.cost > 0 && self.ensure_open().is_ok() => deny_cache.find(&item),
            _ => None,
        };
        let Some((answer, now_us)) = denied else {
            let charges = self.deny_cache.as_ref().map(|deny_cache| deny_cache.charges(&item));
            return Ok(Prepared::Check(Group::of_one(item), charges));
        };
        Ok(Prepared::Denied(answers::decision(&item.target.gate, answer, Source::DenyCache, now_us)))
    }

    /// Returns the decision on a check of one key, and records the key's state.
    fn conclude(
        &self,
        check: CheckRef<'_>,
        charges: Option<Charges>,
        shared: Result<Share, Error>,
    ) -> Result<Decision, Error> {
        match shared {
            Ok(share) => {
                let gate = check.gate.info()?;
                let wanted = (check.cost.max(1), max_delay_us(check, &gate.quota));
                let decision = self.decision(gate, wanted, 0, &share);
                if let Some(fallback) = self.fallback.as_ref().filter(|_| share.index == 0) {
                    // One caller of a merged call records for all of them: the state after the last check.
                    let last = (share.n > 1).then(|| Share { index: share.n - 1, ..share.clone() });
                    let last = last.map(|last| self.decision(gate, wanted, 0, &last));
                    let last = last.as_ref().unwrap_or(&decision);
                    if Fallback::is_worth_noting(last) {
                        fallback.note(&self.item(check)?.target, last, &share.outcome.before[0]);
                    }
                }
                if let (Some(deny_cache), Some(charges)) = (&self.deny_cache, charges)
                    && check.cost > 0
                {
                    if !decision.allowed {
                        deny_cache.remember(charges, self.item(check)?, &share);
                    } else if deny_cache.records_charges(charges) {
                        deny_cache.charged(&self.item(check)?.target, share.outcome.now_us);
                    }
                }
                Ok(decision)
            }
            Err(error) => self.fallback_decision(check, None, error),
        }
    }

    /// Does the same as [`report`](Self::report) for a check that was decided without waiting.
    pub(crate) fn report_immediate(
        &self,
        check: CheckRef<'_>,
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        let decided = self.report(check, decided);
        Span::of_check(check.cost).decided(decided.as_ref());
        decided
    }

    /// Applies shadow mode and notifies the observer. Peeks are not reported.
    pub(crate) fn report(
        &self,
        check: CheckRef<'_>,
        mut decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        if let (Ok(decision), true) = (&mut decided, check.gate.is_shadow) {
            decision.shadow = !decision.allowed;
            decision.allowed = true;
        }
        if let (Ok(decision), true) = (&decided, check.cost > 0) {
            self.notify_decided(decision);
            self.notify_denied(check, decision);
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
struct ForgetOnDrop<'a>(Option<&'a DenyCache>, &'a Target);

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(deny_cache) = self.0 {
            deny_cache.forget(self.1);
        }
    }
}

/// The result of preparing a check before the store is called.
enum Prepared {
    Check(Group, Option<Charges>),
    Denied(Decision),
}

/// Returns the longest accepted delay, capped at 2^52 µs, which is beyond any clock.
///
/// `None` where the algorithm has no delay: checks that differ in nothing else are equal, so they merge and
/// share cached denials.
fn max_delay_us(check: CheckRef<'_>, quota: &Quota) -> Option<u64> {
    let delay = check.max_delay.filter(|_| quota.has_queue())?;
    Some(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX).min(1 << 52))
}

pub(super) fn check_cost(cost: u64, quota: &Quota) -> Result<(), Error> {
    match cost > quota.limit() {
        true => Err(Error::over_capacity(cost, quota.limit())),
        false => Ok(()),
    }
}

pub(super) fn with_context(check: CheckRef<'_>, error: Error) -> Error {
    match check.gate.info() {
        Ok(info) => error.with_context(info.name, check.key),
        Err(_) => error,
    }
}

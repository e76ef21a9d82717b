//! The path of a check, from a gate to its decision. The stages, in call order:
//!
//! 1. **overrides**: an operator may have switched the gate, or given the key another quota.
//! 2. **lease**: this process may hold units of the key.
//! 3. **deny cache**: the key may just have been denied.
//! 4. **breaker**: while Redis is unavailable, nothing is sent.
//! 5. **batch**: the check joins others, and equal checks are merged.
//! 6. **store**: a script decides and charges.
//! 7. **fallback**: without a reply, the failure policy decides.
//! 8. **report**: [shadow mode](shadow), then the figures and the observer.
//!
//! A single check ([`Pipeline::check`]) passes all of them. Many independent checks
//! ([`Pipeline::check_each`]) skip the leases and travel in calls of their own. Several checks in one atomic
//! step ([`Pipeline::check_all`]) skip the leases and, except for gates in shadow mode, the deny cache. A partial
//! grant ([`Pipeline::take_up_to`]) passes all of them with n checks at once.

mod acquire;
mod acquire_all;
mod charge_used;
mod components;
mod conclude;
mod defined_gates;
mod failure_policy;
mod group;
mod leasing;
mod lifecycle;
mod overrides;
mod report;
pub(crate) mod request;
mod reserve;
mod send;
mod shadow;
mod take_up_to;
mod write;

use std::sync::Arc;

use futures_util::future::{Either, join_all, join3};
use smallvec::SmallVec;

pub(crate) use self::components::{LimiterSettings, Pipeline};
use self::group::{DecidedGroup, Folded, GroupDecision, Verb};
pub(crate) use self::lifecycle::READY;
use self::overrides::Resolved;
pub(crate) use self::reserve::{SettleCall, UnheldCharge, charged_units, hold_of_item};
use self::send::without_waiting;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::in_flight::GroupAnswer;
use crate::local::deny_cache::SlotSnapshot;
use crate::observe::trace::Span;
use crate::pipeline::request::{GateSpec, Request, check_is_charged};
use crate::store::{Group, GroupItem};

/// # One check
impl Pipeline {
    pub(crate) async fn check(self: &Arc<Self>, request: &Request<'_>) -> Result<Decision, Error> {
        match self.overrides.is_calm() {
            true => self.check_resolved(request).await,
            false => Box::pin(self.check_overridden(request)).await,
        }
    }

    async fn check_overridden(self: &Arc<Self>, request: &Request<'_>) -> Result<Decision, Error> {
        match self.resolve(self.follow(request.borrowed()).await) {
            Resolved::Check(request) => self.check_resolved(&request).await,
            Resolved::Switched(request, decided) => {
                self.report_immediate(&request, without_waiting(decided).await)
            }
        }
    }

    /// Stages 2 to 8.
    async fn check_resolved(self: &Arc<Self>, request: &Request<'_>) -> Result<Decision, Error> {
        if request.charges_used() {
            return Box::pin(self.charge_used(request)).await;
        }
        if let Some(decision) = self.spend_lease(request) {
            return self.report_immediate(request, without_waiting(Ok(decision)).await);
        }
        let span = Span::of_check(request.cost);
        let mut decided = self.decide(request).await;
        if request.gate.leases.is_some() {
            decided = self.record_demand(request, decided);
        }
        let decided = self.report(request, decided);
        span.decided(decided.as_ref());
        decided
    }

    /// Decides with the state that this process has: stages 1 to 3.
    #[inline]
    pub(crate) fn try_check(&self, gate: &Arc<GateSpec>, key: &[u8], cost: u64) -> Option<Decision> {
        if gate.charges_used {
            return None;
        }
        // Makes no request: a check that spends from a lease takes 100 ns.
        if let Some(decision) = self.try_lease(gate, key, cost) {
            return Some(decision);
        }
        if !self.overrides.is_calm() && self.overrides.note_check() {
            return None;
        }
        let (request, decided) = match self.resolve(Request::new(gate, key, cost)) {
            Resolved::Switched(request, decided) => (request, decided),
            Resolved::Check(request) => {
                let decision = self.spend_lease(&request).or_else(|| self.cached_denial(&request))?;
                (request, Ok(decision))
            }
        };
        self.report_immediate(&request, decided).ok().filter(|_| cost > 0)
    }

    /// Stages 3 to 7. Runs everything before the first await eagerly, which keeps the future small.
    #[inline]
    fn decide<'a>(&'a self, request: &'a Request<'a>) -> impl Future<Output = Result<Decision, Error>> + 'a {
        let decided = match self.prepare(request) {
            Prepared::Decided(decided) => decided,
            Prepared::Group(group, snapshot) => match self.ensure_sendable(&group) {
                Ok(hash_tag) => match self.take_in_memory(&group) {
                    Some(share) => self.conclude_check(request, snapshot, share),
                    None => {
                        let sent = self.send(hash_tag, group, self.deadline_of(request.deadline));
                        return Either::Left(
                            async move { self.conclude_check(request, snapshot, sent.await) },
                        );
                    }
                },
                Err(error) => {
                    let n = u64::from(request.cost > 0);
                    self.fall_back(request, n, group.items.into_iter().next(), error)
                        .map(|(_, decision)| decision)
                }
            },
        };
        Either::Right(without_waiting(decided))
    }

    /// Stage 3: returns a cached denial or an error, or else the group to send.
    #[inline]
    fn prepare(&self, request: &Request<'_>) -> Prepared {
        let item = match request.item() {
            Ok(item) => item,
            Err(error) => return Prepared::Decided(Err(request.with_context(error))),
        };
        if request.cost > 0
            && let Some(decision) = self.find_denial(&item)
        {
            return Prepared::Decided(Ok(decision));
        }
        let snapshot = self.deny_cache.as_ref().map(|deny_cache| deny_cache.snapshot(&item));
        Prepared::Group(Group::of_one(item), snapshot)
    }
}

enum Prepared {
    Decided(Result<Decision, Error>),
    /// The snapshot tells later whether the denial is out of date.
    Group(Group, Option<SlotSnapshot>),
}

/// # Many checks, each decided independently
impl Pipeline {
    pub(crate) async fn check_each(&self, requests: Vec<Request<'_>>) -> Vec<Result<Decision, Error>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let span = Span::of_many(requests.len());
        let requests = self.follow_each(requests).await;
        let decided = self.decide_or_charge_each(requests).await;
        span.many_decided(&decided);
        decided
    }

    async fn decide_each(&self, requests: Vec<Request<'_>>) -> Vec<Result<Decision, Error>> {
        let deadline = self.deadline_of(requests.iter().filter_map(|request| request.deadline).min());
        let (mut groups, mut snapshots) = (Vec::new(), Vec::new());
        let prepare = |request| match self.resolve(request) {
            Resolved::Switched(request, decided) => (request, Some(decided)),
            Resolved::Check(request) => match self.prepare(&request) {
                Prepared::Decided(decided) => (request, Some(decided)),
                Prepared::Group(group, snapshot) => {
                    groups.push(group);
                    snapshots.push(snapshot);
                    (request, None)
                }
            },
        };
        let prepared: Vec<_> = requests.into_iter().map(prepare).collect();
        let mut replies = self.send_each(groups, deadline).await.into_iter().zip(snapshots);
        let mut reply = || replies.next().unwrap_or_else(|| (Err(Error::unavailable("no reply")), None));
        let decide = |(request, decided): (Request<'_>, Option<Result<Decision, Error>>)| {
            let decided = decided.unwrap_or_else(|| {
                let (share, snapshot) = reply();
                self.conclude_check(&request, snapshot, share)
            });
            self.report(&request, decided)
        };
        prepared.into_iter().map(decide).collect()
    }
}

/// # Several checks, all or nothing
impl Pipeline {
    pub(crate) async fn check_all(&self, requests: Vec<Request<'_>>) -> Result<AllDecision, Error> {
        let span = Span::of_all(requests.len());
        let decided = self.decide_all(requests, 1, Verb::Check).await.map(|decided| decided.decision);
        span.all_decided(decided.as_ref());
        decided
    }

    /// Returns the decision that [`check_all`](Self::check_all) would make, without charging.
    pub(crate) async fn peek_all(&self, requests: Vec<Request<'_>>) -> Result<AllDecision, Error> {
        self.decide_all(requests, 0, Verb::Check).await.map(|decided| decided.decision)
    }

    /// Takes up to `n` times, all or nothing. If all costs are 0, it peeks. Mostly no gate is switched, restricted, in
    /// shadow or charges units used: then all are one group.
    async fn decide_all<'a>(
        &self,
        requests: Vec<Request<'a>>,
        n: u64,
        verb: Verb<'_>,
    ) -> Result<DecidedGroup<'a>, Error> {
        group::check_number(requests.len())?;
        let has_costs = requests.iter().any(|request| request.cost > 0);
        let n = if has_costs { n } else { 0 };
        let requests = self.follow_each(requests).await;
        let is_apart = |request: &Request<'_>| {
            request.gate.is_shadow || request.gate.charges_used || request.at_most.is_some()
        };
        if !self.overrides.is_calm() || requests.iter().any(is_apart) {
            // Boxed: it is many times as large.
            return Box::pin(self.decide_apart(requests, n, verb)).await;
        }
        let taken = self.take_all(&requests.iter().collect::<SmallVec<[_; 2]>>(), n, verb).await?;
        let counts = |at: usize| !has_costs || requests[at].cost > 0;
        let mut peeked = taken.decisions.iter().enumerate();
        let is_allowed = match n {
            0 => peeked.all(|(at, decision)| decision.is_allowed() || !counts(at)),
            _ => taken.is_allowed,
        };
        // Of a group that was granted less often than wanted, the gate that restricts it binds, as of a denied one.
        let is_full = is_allowed && !taken.is_restricted;
        let decision = group::decision(is_full, &requests, taken.decisions, counts);
        let decision = AllDecision { allowed: is_allowed, ..decision };
        Ok(DecidedGroup { granted: taken.granted, decision, requests, held: taken.held })
    }

    /// Takes up to `n` times, all or nothing, of the gates that are neither switched nor in shadow. Each gate in shadow
    /// is decided separately at the same time, and so is one that charges units used. A gate in
    /// shadow cannot fail the others, which may already be charged, unless the limiter was shut down; one that charges
    /// units used can, if its failure policy is an error.
    async fn decide_apart<'a>(
        &self,
        requests: Vec<Request<'a>>,
        n: u64,
        verb: Verb<'_>,
    ) -> Result<DecidedGroup<'a>, Error> {
        let has_costs = requests.iter().any(|request| request.cost > 0);
        let (requests, mut decisions) = self.resolve_all(requests)?;
        let switched = group::switched(&requests, &decisions, n);
        let undecided = (0..requests.len()).filter(|&at| decisions[at].is_none());
        let is_used = |&at: &usize| n > 0 && matches!(verb, Verb::Check) && requests[at].charges_used();
        let (used, undecided): (Vec<_>, Vec<_>) = undecided.partition(is_used);
        // A check of cost 0 denies and binds only if all costs are 0.
        let counts = |at: usize| !has_costs || requests[at].cost > 0;
        let is_denial = |(at, decision): (usize, &Option<Decision>)| {
            counts(at) && decision.as_ref().is_some_and(|decision| !decision.is_allowed())
        };
        // A group that a closed gate denies charges nothing, except units that were used already.
        let is_denied = decisions.iter().enumerate().any(is_denial);
        let n = if is_denied { 0 } else { n };
        let (shadow, together): (Vec<_>, Vec<_>) =
            undecided.into_iter().partition(|&at| requests[at].gate.is_shadow);
        for &at in shadow.iter().chain(&used) {
            // A configuration error fails the group before anything is charged.
            let (request, info) = (&requests[at], requests[at].gate.info()?);
            if n.min(request.cost) > 0 && !matches!(verb, Verb::Acquire) {
                check_is_charged(&info.quota).map_err(|error| request.with_context(error))?;
            }
        }
        let is_permit = |&at: &usize| matches!(verb, Verb::Acquire) && requests[at].is_in_flight();
        let (shadow_permits, shadow): (Vec<_>, Vec<_>) = shadow.into_iter().partition(is_permit);
        let charge_used = join_all(used.iter().map(|&at| self.charge_used(&requests[at])));
        let group: Vec<_> = together.iter().map(|&at| &requests[at]).collect();
        if !shadow.is_empty()
            && let Err(error) = Folded::new(&group, n, verb)
        {
            // Units that were used are charged, whatever the others do.
            charge_used.await;
            return Err(error);
        }
        let decide_shadow = self.decide_in_shadow(&requests, &shadow, n, verb);
        let (taken, shadow_decisions, used_decisions) =
            join3(self.take_all(&group, n, verb), decide_shadow, charge_used).await;
        let taken = match (taken, verb) {
            (Ok(taken), _) => taken,
            (Err(error), Verb::Reserve(hold)) if n > 0 => {
                let held = shadow.iter().map(|&at| (at, &requests[at])).zip(&shadow_decisions);
                self.cancel_shadow(held, hold).await;
                return Err(error);
            }
            (Err(error), _) => return Err(error),
        };
        let binds = |at: usize| counts(at) && !requests[at].gate.is_shadow;
        let mut peeked = together.iter().zip(&taken.decisions);
        let is_taken = match n {
            0 => peeked.all(|(&at, decision)| decision.is_allowed() || !binds(at)),
            _ => taken.is_allowed,
        };
        let mut held: Vec<_> =
            taken.held.into_iter().map(|(check, units)| (together[check], units)).collect();
        for (at, decision) in together.into_iter().zip(taken.decisions) {
            decisions[at] = Some(decision);
        }
        let decided_apart =
            shadow.into_iter().zip(shadow_decisions).chain(used.into_iter().zip(used_decisions));
        let mut are_within_limits = true;
        for (at, decided) in decided_apart {
            let decision = decided?;
            are_within_limits &= decision.is_allowed();
            decisions[at] = Some(decision);
        }
        let is_allowed = is_taken && !is_denied && are_within_limits;
        self.notify_switched(&requests, &decisions, &switched, is_allowed);
        for at in shadow_permits {
            let (decision, units) =
                Box::pin(self.acquire_in_shadow(&requests[at], is_allowed && n > 0 && requests[at].cost > 0))
                    .await?;
            decisions[at] = Some(decision);
            held.extend(units.map(|units| (at, units)));
        }
        let decisions = decisions.into_iter().flatten().collect();
        let is_full = is_allowed && !taken.is_restricted;
        let decision =
            AllDecision { allowed: is_allowed, ..group::decision(is_full, &requests, decisions, binds) };
        Ok(DecidedGroup { granted: taken.granted, decision, requests, held })
    }

    /// Stage 1 of each check of a group. Returns the decision where a switch decides.
    fn resolve_all<'a>(
        &self,
        requests: Vec<Request<'a>>,
    ) -> Result<(Vec<Request<'a>>, Vec<Option<Decision>>), Error> {
        let resolve = |request| match self.resolve(request) {
            Resolved::Switched(request, decided) => Ok((request, Some(decided?))),
            Resolved::Check(request) => Ok((request, None)),
        };
        let resolved = requests.into_iter().map(resolve).collect::<Result<Vec<_>, Error>>()?;
        Ok(resolved.into_iter().unzip())
    }

    /// Stages 4 to 7 of a group.
    async fn take_group(
        &self,
        requests: &[&Request<'_>],
        n: u64,
        verb: Verb<'_>,
    ) -> Result<GroupDecision, Error> {
        if requests.is_empty() {
            return Ok(GroupDecision::new(n, n, Vec::new()));
        }
        let group = Folded::new(requests, n, verb)?;
        let sent = group.sent(n);
        let deadline = self.deadline_of(requests.iter().filter_map(|request| request.deadline).min());
        let acquires = match verb {
            Verb::Acquire => self.acquires_of(requests, &group)?,
            _ => Vec::new(),
        };
        let items = group.items.iter().cloned();
        let items: SmallVec<_> = match verb {
            Verb::Reserve(hold) if n > 0 => items.map(|item| item.held(hold)).collect(),
            _ if sent > 1 => items.map(GroupItem::of_grant).collect(),
            _ => items.collect(),
        };
        let answer = match acquires.is_empty() {
            true => self.take(Group { items, n: sent }, deadline).await.map(GroupAnswer::from),
            false => Box::pin(self.acquire_group(items, acquires.clone(), sent, deadline)).await,
        };
        match answer {
            Ok(answer) => Ok(self.conclude_all(group, sent, answer)),
            Err(error) => self.fall_back_all(requests, &group, &acquires, n, &error),
        }
    }

    /// Stages 4 to 8 of a group.
    async fn take_all(
        &self,
        requests: &[&Request<'_>],
        n: u64,
        verb: Verb<'_>,
    ) -> Result<GroupDecision, Error> {
        let taken = self.take_group(requests, n, verb).await?;
        if n > 0 {
            // If denied, only the gates that denied are reported: the others admitted nothing. A cost of 0 peeks.
            let charged = requests.iter().zip(&taken.decisions).filter(|(request, _)| request.cost > 0);
            let reported = charged.filter(|(_, decision)| taken.is_allowed || !decision.is_allowed());
            reported.for_each(|(request, decision)| self.notify(request, decision));
        }
        Ok(taken)
    }
}

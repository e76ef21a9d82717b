//! Several gates in one atomic step, of which some have an in-flight limit.
//!
//! Groups that have a key of an in-flight limit in common travel together. A group runs in the background: a caller
//! that is no longer polled delays no other caller of its keys.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::acquire::Held;
use super::components::Pipeline;
use super::group::{self, Folded, GroupDecision};
use crate::connection::Deadline;
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::in_flight::{AcquireTerms, GroupAcquire, GroupAnswer, Permit, Permits, Polls, UnitsGuard};
use crate::local::fallback::OnFailure;
use crate::observe::trace::Span;
use crate::pipeline::request::Request;
use crate::store::{Group, Target};

/// The decisions of a group, and the units that it holds, by check.
struct GroupTaken {
    is_allowed: bool,
    decisions: Vec<Decision>,
    held: Vec<(usize, UnitsGuard)>,
}

/// Returns an error for gates that cannot be together with an in-flight limit. The script of such groups counts no denials
/// for a ban; and units that are used are known after the work that a permit admits.
fn check_together(requests: &[Request<'_>]) -> Result<(), Error> {
    if let Some(request) = requests.iter().find(|request| request.charges_used()) {
        return Err(request.with_context(Error::config(
            "a gate that charges units used cannot be acquired together with permits: check it when the work has ended",
        )));
    }
    let is_in_flight =
        |request: &Request<'_>| request.gate.info().is_ok_and(|info| info.quota.is_in_flight());
    match requests.iter().find(|request| request.gate.ban.is_some()) {
        Some(request) if requests.iter().any(is_in_flight) => Err(request.with_context(Error::config(
            "denials of a gate with a ban cannot be counted together with an in-flight limit: check the gate first, and then acquire",
        ))),
        _ => Ok(()),
    }
}

impl Pipeline {
    /// Acquires all or nothing. Repeats it for at most `max_wait`.
    pub(crate) async fn acquire_all(
        self: &Arc<Self>,
        requests: Vec<Request<'static>>,
        max_wait: Duration,
    ) -> Result<(AllDecision, Option<Permits>), Error> {
        group::check_number(requests.len())?;
        check_together(&requests)?;
        let span = Span::of_all(requests.len());
        let waited = self.stopwatch();
        let mut polls = Polls::default();
        loop {
            let acquired = self.acquire_all_once(requests.clone()).await;
            let (decision, permits) = match acquired {
                Ok((decision, permits)) => (Ok(decision), permits),
                Err(error) => (Err(error), None),
            };
            let left = max_wait.saturating_sub(waited.elapsed());
            let retry_after = match &decision {
                Ok(decision) if !decision.is_allowed() && !left.is_zero() => decision.retry_after(),
                _ => Duration::MAX,
            };
            if retry_after > left {
                span.all_decided(&decision);
                return decision.map(|decision| (decision, permits));
            }
            self.sleep(retry_after.max(Duration::from_micros(polls.next())).min(left)).await;
        }
    }

    async fn acquire_all_once(
        self: &Arc<Self>,
        requests: Vec<Request<'static>>,
    ) -> Result<(AllDecision, Option<Permits>), Error> {
        let (sender, taken) = oneshot::channel();
        let pipeline = self.clone();
        // Without a receiver, the permits are dropped, which releases them.
        self.spawn(async move { drop(sender.send(pipeline.acquire_group(requests).await)) });
        taken.await.unwrap_or_else(|_| Err(Error::runtime_ended()))
    }

    /// Takes all or nothing of the gates that are neither switched nor in shadow mode. Each gate in shadow mode
    /// is decided on its own, and cannot fail the others.
    async fn acquire_group(
        &self,
        requests: Vec<Request<'static>>,
    ) -> Result<(AllDecision, Option<Permits>), Error> {
        let n = u64::from(requests.iter().any(|request| request.cost > 0));
        let (requests, mut decisions) = self.resolve_all(self.follow_each(requests).await)?;
        let switched = group::switched(&requests, &decisions, n);
        let is_denied = decisions.iter().flatten().any(|decision| !decision.is_allowed());
        let n = if is_denied { 0 } else { n };
        let undecided = (0..requests.len()).filter(|&at| decisions[at].is_none());
        let (shadow, together): (Vec<_>, Vec<_>) = undecided.partition(|&at| requests[at].gate.is_shadow);
        for &at in &shadow {
            requests[at].gate.info()?;
        }
        let group: Vec<_> = together.iter().map(|&at| &requests[at]).collect();
        let taken = self.take_permits(&group, n).await?;
        let mut held: Vec<(usize, UnitsGuard)> =
            taken.held.into_iter().map(|(check, held)| (together[check], held)).collect();
        for (&at, decision) in together.iter().zip(taken.decisions) {
            decisions[at] = Some(decision);
        }
        let is_allowed = taken.is_allowed && !is_denied;
        self.notify_switched(&requests, &decisions, &switched, is_allowed);
        for at in shadow {
            let (decision, units) = self.acquire_in_shadow(&requests[at], n, is_allowed).await?;
            decisions[at] = Some(decision);
            held.extend(units.map(|units| (at, units)));
        }
        let binds = |at: usize| (n == 0 || requests[at].cost > 0) && !requests[at].gate.is_shadow;
        let permits = is_allowed.then(|| permits(held));
        let decisions = decisions.into_iter().flatten().collect();
        Ok((group::decision(is_allowed, &requests, decisions, binds), permits))
    }

    /// Decides a gate in shadow mode. Acquires nothing if the group is denied.
    async fn acquire_in_shadow(
        &self,
        request: &Request<'_>,
        n: u64,
        is_allowed: bool,
    ) -> Result<Held, Error> {
        let decision = match (request.gate.info()?.quota.is_in_flight(), n) {
            (true, 1..) if is_allowed => return self.acquire_in_time(request, Duration::ZERO).await,
            (true, _) => {
                let peek = Request { cost: 0, ..request.borrowed() };
                Self::admit_in_shadow(request, self.decide(&peek).await)?
            }
            (false, 0) => self.peek_shadow(request).await?,
            (false, _) => self.decide_each(vec![request.borrowed()]).await.swap_remove(0)?,
        };
        Ok((decision, None))
    }

    /// Takes a group of gates in one step, and notifies the observer.
    async fn take_permits(&self, requests: &[&Request<'_>], n: u64) -> Result<GroupTaken, Error> {
        if requests.is_empty() {
            return Ok(GroupTaken { is_allowed: true, decisions: Vec::new(), held: Vec::new() });
        }
        let mut group = Folded::for_acquires(requests)?;
        let deadline = self.deadline_of(requests.iter().filter_map(|request| request.deadline).min());
        self.ensure_background_jobs();
        let keys = self.keys(requests, &group)?;
        let taken = match self.send_group(&group, &keys, n, deadline).await {
            Ok(GroupAnswer { share, held, deciders, behind }) => {
                for (item, decider) in deciders {
                    group.items[item].target.gate = decider;
                }
                let GroupDecision { is_allowed, decisions, .. } = self.conclude_all(&group, share.n, &share);
                let held =
                    held.into_iter().filter_map(|(item, held)| Some((group.first_check_of(item)?, held)));
                let taken = GroupTaken { is_allowed, decisions, held: held.collect() };
                Self::deny_behind(taken, &group, &behind)
            }
            Err(error) => self.fall_back_group(requests, &group, &keys, n, &error)?,
        };
        let charged = requests.iter().zip(&taken.decisions).filter(|(request, _)| request.cost > 0);
        let reported = charged.filter(|(_, decision)| n > 0 && (taken.is_allowed || !decision.is_allowed()));
        reported.for_each(|(request, decision)| self.notify(request, decision));
        Ok(taken)
    }

    /// Returns the items with an in-flight limit, with their keys and terms.
    fn keys(
        &self,
        requests: &[&Request<'_>],
        group: &Folded,
    ) -> Result<Vec<(usize, Target, AcquireTerms)>, Error> {
        let is_counted = |&item: &usize| group.items[item].target.gate.quota.is_in_flight();
        let items = (0..group.items.len()).filter(is_counted);
        items
            .map(|item| {
                let (target, terms) = self.item_terms(requests, group, item)?;
                Ok((item, target, terms))
            })
            .collect()
    }

    /// Returns the key and the terms of an item: those of its first check, with the cost of all.
    fn item_terms(
        &self,
        requests: &[&Request<'_>],
        group: &Folded,
        item: usize,
    ) -> Result<(Target, AcquireTerms), Error> {
        let request = requests[group.first_check_of(item).unwrap_or(0)];
        let request = Request { cost: group.items[item].cost, ..request.borrowed() };
        self.terms(&request).map_err(|error| request.with_context(error))
    }

    /// Sends the group. Peeks if it acquires nothing.
    async fn send_group(
        &self,
        group: &Folded,
        keys: &[(usize, Target, AcquireTerms)],
        n: u64,
        deadline: Deadline,
    ) -> Result<GroupAnswer, Error> {
        let items = group.items.iter().cloned().collect();
        let mut group = GroupAcquire { items, keys: keys.to_vec() };
        // Before the keys are busy, while no other acquire of them is sent.
        let adaptive = keys.iter().filter_map(|(_, _, terms)| terms.adaptive.as_ref());
        join_all(adaptive.map(|adaptive| adaptive.key.ensure_current(deadline))).await;
        if n > 0 && !keys.is_empty() {
            return self.permits.acquire_group(group, deadline).await;
        }
        // A peek needs no message.
        let deciders = group.adapt();
        let share = self.permits.send(Group { items: group.items, n }, deadline).await?;
        Ok(GroupAnswer { share, held: Vec::new(), deciders, behind: Vec::new() })
    }

    /// Denies a group that would have overtaken callers.
    fn deny_behind(mut taken: GroupTaken, group: &Folded, behind: &[usize]) -> GroupTaken {
        for &item in behind {
            taken.is_allowed = false;
            let checks = (0..taken.decisions.len()).filter(|&check| group.index_of[check] == item);
            for check in checks {
                let decision = &mut taken.decisions[check];
                decision.allowed = false;
                decision.retry_after_us = decision.retry_after_us.max(Polls::default().next());
            }
        }
        taken
    }

    /// Applies the failure policies to a group: each gate's own.
    fn fall_back_group(
        &self,
        requests: &[&Request<'_>],
        group: &Folded,
        keys: &[(usize, Target, AcquireTerms)],
        n: u64,
        error: &Error,
    ) -> Result<GroupTaken, Error> {
        if error.gate().is_some() {
            return Err(error.clone());
        }
        if !error.is_unavailable() {
            let check = group.first_check_of(error.item()).unwrap_or(0);
            return Err(requests[check].with_context(error.clone()));
        }
        let is_counted =
            |check: &usize| requests[*check].gate.info().is_ok_and(|info| info.quota.is_in_flight());
        let (counted, rates): (Vec<usize>, Vec<usize>) = (0..requests.len()).partition(is_counted);
        let mut policies = Vec::with_capacity(counted.len());
        for &check in &counted {
            policies.push(self.policy(requests[check], error.clone())?);
        }
        let is_admitted = |(_, target, terms): &(usize, Target, AcquireTerms)| match terms.on_failure {
            OnFailure::Local => terms.cost <= self.permits.room(target, terms),
            policy => policy == OnFailure::Open,
        };
        let is_in_share = keys.iter().all(is_admitted);
        let is_open = is_in_share && !policies.contains(&OnFailure::Closed);
        let mut decisions: Vec<Option<Decision>> = vec![None; requests.len()];
        for (&check, policy) in counted.iter().zip(policies) {
            decisions[check] = Some(match policy {
                OnFailure::Local => {
                    let retry_us = Polls::default().next();
                    self.local_decision(requests[check], is_in_share, 0, retry_us)?
                }
                OnFailure::Open => requests[check].fixed_decision(true, Source::Open)?,
                _ => requests[check].fixed_decision(false, Source::Closed)?,
            });
        }
        let n = if is_open { n } else { 0 };
        let mut is_allowed = is_open;
        if !rates.is_empty() {
            let rate_requests: Vec<_> = rates.iter().map(|&check| requests[check]).collect();
            let folded = Folded::new(&rate_requests, n)?;
            let decided = self.fall_back_all(&rate_requests, &folded, n, error)?;
            is_allowed &= decided.is_allowed;
            rates
                .iter()
                .zip(decided.decisions)
                .for_each(|(&check, decision)| decisions[check] = Some(decision));
        }
        let held = match is_allowed && n > 0 {
            true => self.hold_locally(group, keys).ok_or_else(|| error.clone())?,
            false => Vec::new(),
        };
        let mut decisions: Vec<_> = decisions.into_iter().flatten().collect();
        for (check, decision) in decisions.iter_mut().enumerate() {
            if is_counted(&check) && decision.source() == Source::Local {
                let key = keys.iter().find(|(item, ..)| *item == group.index_of[check]);
                decision.remaining = key.map_or(0, |(_, target, terms)| self.permits.room(target, terms));
            }
        }
        Ok(GroupTaken { is_allowed, held, decisions })
    }

    /// Holds the units of a group that its failure policies admitted. Returns `None` if there is no room to count those
    /// within a share.
    fn hold_locally(
        &self,
        group: &Folded,
        keys: &[(usize, Target, AcquireTerms)],
    ) -> Option<Vec<(usize, UnitsGuard)>> {
        let mut all = Vec::with_capacity(keys.len());
        for (item, target, terms) in keys {
            match self.permits.hold_locally(target, terms) {
                Some(held) => all.extend(group.first_check_of(*item).map(|check| (check, held))),
                None if terms.on_failure == OnFailure::Local => return None,
                None => {}
            }
        }
        Some(all)
    }
}

/// Returns the permits of an admitted group, in the order of the checks.
fn permits(mut held: Vec<(usize, UnitsGuard)>) -> Permits {
    held.sort_by_key(|(check, _)| *check);
    Permits::new(held.into_iter().map(|(_, held)| Permit::counted(held)).collect())
}

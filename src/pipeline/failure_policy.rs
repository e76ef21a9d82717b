//! Stage 7: without a reply of the store, the gate's failure policy decides.

use super::components::Pipeline;
use super::conclude::decision;
use super::group::{Folded, GroupDecision, sent};
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::in_flight::{ItemAcquire, Polls};
use crate::local::fallback::LocalOutcome;
use crate::local::on_failure::OnFailure;
use crate::pipeline::request::Request;
use crate::store::GroupItem;

impl Pipeline {
    /// Returns how many of `n` checks of one key the failure policy admits, and its decision on them. `item` saves
    /// making the check's item again.
    pub(super) fn fall_back(
        &self,
        request: &Request<'_>,
        n: u64,
        item: Option<GroupItem>,
        error: Error,
    ) -> Result<(u64, Decision), Error> {
        match self.policy(request, error)? {
            OnFailure::Local => {
                let item = item.map_or_else(|| request.item(), Ok)?;
                let n = sent(&item.target.gate.quota, item.cost, n);
                let (granted, mut decisions) =
                    self.decide_locally(&[GroupItem { cost: item.cost.max(1), ..item }], n)?;
                Ok((granted, decisions.remove(0)))
            }
            OnFailure::Open => Ok((n, request.fixed_decision(true, Source::Open)?)),
            _ => Ok((0, request.fixed_decision(false, Source::Closed)?)),
        }
    }

    /// Decides a group. Failure policies admit or deny some checks; this process decides the others, all or
    /// nothing. `acquires` are the group's acquires of in-flight limits.
    pub(super) fn fall_back_all(
        &self,
        requests: &[&Request<'_>],
        group: &Folded,
        acquires: &[ItemAcquire],
        n: u64,
        error: &Error,
    ) -> Result<GroupDecision, Error> {
        // An error of one key, such as corrupt state, names that key.
        let blamed = (!error.is_unavailable()).then(|| group.first_check_of(error.item())).flatten();
        let failed = blamed.map_or(requests, |at| std::slice::from_ref(&requests[at]));
        // Collected before the first error returns, so that the observer is notified of each check.
        let policies: Vec<_> = failed.iter().map(|request| self.policy(request, error.clone())).collect();
        let policies = policies.into_iter().collect::<Result<Vec<_>, _>>()?;
        // Checks of one key are decided as one, by the policy of the first.
        let policy_of = |item: usize| policies[group.first_check_of(item).unwrap_or(0)];
        let acquire_of = |item: usize| acquires.iter().find(|(at, ..)| *at == item);
        let is_local = |&item: &usize| policy_of(item) == OnFailure::Local && acquire_of(item).is_none();
        let locals: Vec<usize> = (0..group.items.len()).filter(is_local).collect();
        let items: Vec<GroupItem> = locals.iter().map(|&item| group.items[item].clone()).collect();
        let has_room = |(_, target, terms): &ItemAcquire| {
            terms.on_failure != OnFailure::Local || terms.cost <= self.permits.room(target, terms)
        };
        let has_room = acquires.iter().all(has_room);
        // If a policy denies what costs something, the group is denied, so it charges nothing.
        let is_denial = |(at, item): (usize, &GroupItem)| item.cost > 0 && policy_of(at) == OnFailure::Closed;
        let is_denied = group.items.iter().enumerate().any(is_denial) || !has_room;
        let n = if items.is_empty() { n } else { group.sent(n) };
        let taken = if is_denied { 0 } else { n };
        let (granted, local) = match items.is_empty() {
            true => (taken, Vec::new()),
            false => self.decide_locally(&items, taken)?,
        };
        let held = if granted > 0 { self.hold_locally(group, acquires, error)? } else { Vec::new() };
        let mut decisions = Vec::with_capacity(requests.len());
        for (request, &index) in requests.iter().zip(&group.index_of) {
            decisions.push(match (policy_of(index), acquire_of(index)) {
                (OnFailure::Local, Some((_, target, terms))) => {
                    let remaining = self.permits.room(target, terms);
                    self.local_decision(request, has_room, remaining, Polls::default().next())?
                }
                (OnFailure::Local, None) => local[locals.partition_point(|&local| local < index)].clone(),
                (OnFailure::Open, _) => request.fixed_decision(true, Source::Open)?,
                _ => request.fixed_decision(false, Source::Closed)?,
            });
        }
        Ok(GroupDecision { held, ..GroupDecision::new(n, granted, decisions) })
    }

    /// Returns the failure policy to apply, or the error if none applies.
    pub(super) fn policy(&self, request: &Request<'_>, error: Error) -> Result<OnFailure, Error> {
        if self.store.fixed_decision().is_none() {
            self.notify_failed(request.gate.info()?, || request.with_context(error.clone()));
        }
        match self.on_failure(request) {
            on_failure if on_failure != OnFailure::Error && error.is_unavailable() => Ok(on_failure),
            _ => Err(request.with_context(error)),
        }
    }

    /// Returns the failure policy of a gate. Without a fallback, a local one is an error.
    pub(super) fn on_failure(&self, request: &Request<'_>) -> OnFailure {
        match (self.store.fixed_decision(), request.gate.on_failure) {
            (Some(true), _) => OnFailure::Open,
            (Some(false), _) => OnFailure::Closed,
            (None, OnFailure::Local) if self.fallback.is_none() => OnFailure::Error,
            (None, on_failure) => on_failure,
        }
    }

    /// Decides `n` times a group within this process's shares, all or nothing. Returns how often it was admitted, and
    /// one decision for each item.
    fn decide_locally(&self, items: &[GroupItem], n: u64) -> Result<(u64, Vec<Decision>), Error> {
        let Some(fallback) = &self.fallback else { return Err(Error::unavailable("there is no fallback")) };
        let LocalOutcome { granted, answers, now_us } = fallback.take(items, n);
        let answered = items.iter().zip(answers);
        let decisions = answered.map(|(item, (answer, stamp_us))| Decision {
            stamp_us,
            ..decision(&item.target.gate, answer, Source::Local, now_us)
        });
        Ok((granted, decisions.collect()))
    }
}

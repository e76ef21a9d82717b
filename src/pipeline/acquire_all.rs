//! Several gates in one atomic step, of which some have an in-flight limit.
//!
//! Groups that have a key of an in-flight limit in common travel together. A group runs in the background: a caller
//! that is no longer polled delays no other caller of its keys.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::components::Pipeline;
use super::group::{DecidedGroup, Folded, Verb};
use crate::connection::Deadline;
use crate::decision::AllDecision;
use crate::error::Error;
use crate::in_flight::{GroupAcquire, GroupAnswer, ItemAcquire, Permit, Permits, Polls, UnitsGuard};
use crate::local::on_failure::OnFailure;
use crate::observe::trace::Span;
use crate::pipeline::request::Request;
use crate::store::{Group, GroupItem};

/// Returns an error for gates that cannot be together with an in-flight limit. The script of such groups counts no denials
/// for a ban; and units that are used are known after the work that a permit admits.
fn check_together(requests: &[Request<'_>]) -> Result<(), Error> {
    if let Some(request) = requests.iter().find(|request| request.charges_used()) {
        return Err(request.with_context(Error::config(
            "a gate that charges units used cannot be acquired together with permits: check it when the work has ended",
        )));
    }
    match requests.iter().find(|request| request.gate.ban.is_some()) {
        Some(request) if requests.iter().any(Request::is_in_flight) => Err(request.with_context(Error::config(
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
        check_together(&requests)?;
        let span = Span::of_all(requests.len());
        let waited = self.stopwatch();
        let mut polls = Polls::default();
        loop {
            let acquired = self.acquire_all_once(requests.clone()).await;
            let left = max_wait.saturating_sub(waited.elapsed());
            let retry_after = match &acquired {
                Ok(DecidedGroup { decision, .. }) if !decision.is_allowed() && !left.is_zero() => {
                    decision.retry_after()
                }
                _ => Duration::MAX,
            };
            if retry_after > left {
                span.all_decided(acquired.as_ref().map(|acquired| &acquired.decision));
                let DecidedGroup { decision, held, .. } = acquired?;
                let permits = decision.is_allowed().then(|| permits(held));
                return Ok((decision, permits));
            }
            self.sleep(retry_after.max(Duration::from_micros(polls.next())).min(left)).await;
        }
    }

    async fn acquire_all_once(
        self: &Arc<Self>,
        requests: Vec<Request<'static>>,
    ) -> Result<DecidedGroup<'static>, Error> {
        let (sender, acquired) = oneshot::channel();
        let pipeline = self.clone();
        // Without a receiver, the units are dropped, which releases them.
        self.spawn(async move { drop(sender.send(pipeline.decide_all(requests, 1, Verb::Acquire).await)) });
        acquired.await.unwrap_or_else(|_| Err(Error::runtime_ended()))
    }

    /// Returns the acquires of the items with an in-flight limit. The terms are those of an item's first check, with the
    /// cost of all.
    pub(super) fn acquires_of(
        &self,
        requests: &[&Request<'_>],
        group: &Folded,
    ) -> Result<Vec<ItemAcquire>, Error> {
        let counted =
            group.items.iter().enumerate().filter(|(_, item)| item.target.gate.quota.is_in_flight());
        let acquire = |(index, item): (usize, &GroupItem)| {
            let request = requests[group.first_check_of(index).unwrap_or(0)];
            let terms = self.terms(&Request { cost: item.cost, ..request.borrowed() });
            let (target, terms) = terms.map_err(|error| request.with_context(error))?;
            Ok((index, target, terms))
        };
        counted.map(acquire).collect()
    }

    /// Sends a group of which some items have an in-flight limit. Peeks if `n` is 0.
    pub(super) async fn acquire_group(
        &self,
        items: SmallVec<[GroupItem; 1]>,
        acquires: Vec<ItemAcquire>,
        n: u64,
        deadline: Deadline,
    ) -> Result<GroupAnswer, Error> {
        self.ensure_background_jobs();
        // Before the keys are busy, while no other acquire of them is sent.
        let adaptive = acquires.iter().filter_map(|(_, _, terms)| terms.adaptive.as_ref());
        join_all(adaptive.map(|adaptive| adaptive.key.ensure_current(deadline))).await;
        let mut group = GroupAcquire { items, keys: acquires };
        if n > 0 {
            return self.permits.acquire_group(group, deadline).await;
        }
        // A peek needs no message.
        let deciders = group.adapt();
        let share = self.take(Group { items: group.items, n }, deadline).await?;
        Ok(GroupAnswer { deciders, ..GroupAnswer::from(share) })
    }

    /// Holds the units of a group that its failure policies admitted. Returns the error if there is no room to count those
    /// within a share.
    pub(super) fn hold_locally(
        &self,
        group: &Folded,
        acquires: &[ItemAcquire],
        error: &Error,
    ) -> Result<Vec<(usize, UnitsGuard)>, Error> {
        let mut all = Vec::with_capacity(acquires.len());
        for (item, target, terms) in acquires {
            match self.permits.hold_locally(target, terms) {
                Some(held) => all.extend(group.first_check_of(*item).map(|check| (check, held))),
                None if terms.on_failure == OnFailure::Local => return Err(error.clone()),
                None => {}
            }
        }
        Ok(all)
    }
}

/// Returns the permits of an admitted group, in the order of the checks.
fn permits(mut held: Vec<(usize, UnitsGuard)>) -> Permits {
    held.sort_by_key(|(check, _)| *check);
    Permits::new(held.into_iter().map(|(_, held)| Permit::counted(held)).collect())
}

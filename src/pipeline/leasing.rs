//! Stage 2: units of the key that this process holds. They are spent without a call, and refilled through
//! the later stages.

use std::sync::Arc;

use super::components::Pipeline;
use super::group::most;
use crate::connection::Deadline;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::local::lease::{Lease, Leases, Upstream};
use crate::observe::trace::Span;
use crate::pipeline::request::{GateSpec, Request};
use crate::store::{GateInfo, Group, Outcome, Target, Write};

impl Pipeline {
    /// Returns `None` if these settings lease nothing.
    pub(crate) fn lease(&self, lease: Lease, info: &Arc<GateInfo>) -> Option<Arc<Leases>> {
        let leases = Leases::new(lease, info, &self.clock, &self.events, &self.background)?;
        self.leases.add(&leases);
        Some(Arc::new(leases))
    }

    #[inline]
    pub(super) fn spend_lease(&self, request: &Request<'_>) -> Option<Decision> {
        request.leases()?.spend(&request.key, request.cost)
    }

    /// Spends units of a gate that is not overridden, and reports the decision.
    #[inline]
    pub(super) fn try_lease(&self, gate: &GateSpec, key: &[u8], cost: u64) -> Option<Decision> {
        let leases = gate.leases.as_ref().filter(|_| self.overrides.is_calm())?;
        // Found before the units are spent: the loads would wait for the compare-and-swap.
        let decision = leases.spend(key, cost)?;
        self.notify_decided(None, &decision);
        Span::of_check(cost).decided(Ok(&decision));
        Some(decision)
    }

    /// Records an admission by the store as demand for a lease. Decides a denied check again: a refill may
    /// have taken the missing units meanwhile.
    pub(super) fn record_demand(
        self: &Arc<Self>,
        request: &Request<'_>,
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        let (Some(leases), Ok(decision)) = (request.leases(), &decided) else { return decided };
        if !decision.is_allowed() {
            return leases.spend(&request.key, request.cost).map_or(decided, Ok);
        }
        if matches!(decision.source(), Source::Redis | Source::Memory) {
            leases.note(self, &request.key, request.cost);
        }
        decided
    }
}

/// # Partial grants
impl Pipeline {
    /// Spends the units of all `n` checks if the lease has them.
    pub(super) fn spend_lease_up_to(&self, request: &Request<'_>, n: u64) -> Option<Decision> {
        let quota = &request.gate.info().ok()?.quota;
        let is_possible = n > 0 && most(quota, request.cost, n) == n;
        request.leases().filter(|_| is_possible)?.spend(&request.key, n * request.cost)
    }

    /// Records what the store granted as demand for a lease. Adds leased units to a grant that is not full.
    pub(super) fn complete_from_lease(
        self: &Arc<Self>,
        request: &Request<'_>,
        n: u64,
        decided: Result<(u64, Decision), Error>,
    ) -> Result<(u64, Decision), Error> {
        let (Some(leases), Ok((granted, decision))) = (request.leases(), &decided) else { return decided };
        let quota = &request.gate.info()?.quota;
        let missing = most(quota, request.cost, n).saturating_sub(*granted);
        if *granted > 0 && matches!(decision.source(), Source::Redis | Source::Memory) {
            leases.note(self, &request.key, granted * request.cost);
        }
        match leases.spend_up_to(&request.key, missing, request.cost) {
            Some((spent, leased)) if *granted == 0 && spent == missing => Ok((spent, leased)),
            // The store's decision has the time until one more is available.
            Some((spent, _)) => {
                decided.map(|(granted, decision)| (granted + spent, Decision { allowed: true, ..decision }))
            }
            None => decided,
        }
    }
}

impl Upstream for Pipeline {
    async fn take(&self, groups: Vec<Group>) -> Vec<Result<Outcome, Error>> {
        let items: Vec<_> = groups.iter().map(|group| group.items.clone()).collect();
        let shares = self.send_each(groups, Deadline::new(self.deadline)).await;
        let taken = shares.into_iter().zip(items).map(|(share, items)| {
            let outcome = share?.outcome;
            self.record_admissions(&items, &outcome);
            Ok(outcome)
        });
        taken.collect()
    }

    /// Also works while the limiter shuts down.
    async fn give_back(&self, target: &Target, units: u64, stamp_us: u64) -> Result<(), Error> {
        let refund = Write::Refund { units, stamp_us: Some(stamp_us) };
        let _forget = self.forget_on_drop(target);
        self.ensure_available(target.hash_tag)?;
        self.store.write(target, refund, Deadline::new(self.deadline)).await.map(drop)
    }
}

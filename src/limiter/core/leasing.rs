//! Leases in the core: spent before the store is called, and refilled through the core.

use std::sync::Arc;

use super::{Core, ForgetOnDrop};
use crate::check::CheckRef;
use crate::connection::Deadline;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::lease::{Lease, Leases, Upstream};
use crate::store::{GateInfo, Group, Outcome, Target, Write};
use crate::trace::Span;

impl Core {
    /// Returns `None` if these settings lease nothing.
    pub(crate) fn lease(&self, lease: Lease, info: &Arc<GateInfo>) -> Option<Arc<Leases>> {
        let leases = Leases::new(lease, info, &self.clock, self.observer.as_ref(), &self.background)?;
        self.leases.add(&leases);
        Some(Arc::new(leases))
    }

    #[inline]
    pub(crate) fn spend(&self, leases: &Leases, key: &[u8], cost: u64) -> Option<Decision> {
        let decision = leases.spend(key, cost)?;
        self.notify_decided(&decision);
        Span::of_check(cost).decided(Ok(&decision));
        Some(decision)
    }

    /// Decides by the lease, or else by the store. An admission by the store is recorded as demand for a
    /// lease.
    pub(crate) async fn check_leased(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
        check: &CheckRef<'_>,
    ) -> Result<Decision, Error> {
        if let Some(decision) = self.spend(leases, check.key, check.cost) {
            // Lets other tasks run if a caller checks in a loop.
            tokio::task::coop::consume_budget().await;
            return Ok(decision);
        }
        let span = Span::of_check(check.cost);
        let decided = self.decide(check).await;
        if let Ok(decision) = &decided {
            if !decision.is_allowed() {
                // A refill may have taken the missing units meanwhile.
                if let Some(decision) = leases.spend(check.key, check.cost) {
                    self.notify_decided(&decision);
                    span.decided(Ok(&decision));
                    return Ok(decision);
                }
            } else if matches!(decision.source(), Source::Redis | Source::Memory) {
                // A denied key has no units to lease.
                leases.note(self, check.key, check.cost);
            }
        }
        let decided = self.report(*check, decided);
        span.decided(decided.as_ref());
        decided
    }
}

impl Upstream for Core {
    async fn take(&self, groups: Vec<Group>) -> Vec<Result<Outcome, Error>> {
        let items: Vec<_> = groups.iter().map(|group| group.items.clone()).collect();
        let shares = self.take_each(groups, Deadline::new(self.deadline)).await;
        let taken = shares.into_iter().zip(items).map(|(share, items)| {
            let outcome = share?.outcome;
            self.charged(&items, &outcome);
            Ok(outcome)
        });
        taken.collect()
    }

    /// Also works while the limiter shuts down.
    async fn give_back(&self, target: &Target, units: u64, stamp_us: u64) -> Result<(), Error> {
        let refund = Write::Refund { units, stamp_us: Some(stamp_us) };
        let _forget = ForgetOnDrop(self.deny_cache.as_ref(), target);
        self.ensure_available(target.hash_tag)?;
        self.store.write(target, refund, Deadline::new(self.deadline)).await.map(drop)
    }
}

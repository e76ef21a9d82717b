//! Checks requests whose cost may be above a limit.

use futures_util::future::{join, join_all, try_join_all};
use tidegate::{Decision, Error, Source};

use super::plan::{Plan, PlannedCheck};
use super::{RulesLimiter, ensure_no_permit};
use crate::decision::RulesDecision;
use crate::descriptor::Descriptor;

impl RulesLimiter {
    /// Checks as [`check`](Self::check) does, but a cost above the limit is a denial by that rule instead of an error.
    /// For services whose clients do not know the limits.
    ///
    /// A request that a rule with `requests_per_unit: 0` denies also shows the states of its other limits, by peeks.
    ///
    /// A denial by its cost charges nothing, and shows the units that are left. In a domain with `charge: each`, the other
    /// rules are charged, as beside any denial.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), except [`Error::is_over_capacity`].
    pub async fn check_or_deny(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Result<RulesDecision, Error> {
        let mut plan = self.plan(domain, descriptors);
        ensure_no_permit(&plan)?;
        if !plan.uncharged().is_empty() {
            // The request is denied also if the states are not known.
            if let Ok(peeked) = Box::pin(self.peek_costs(plan.uncharged())).await {
                plan.show_peeks(peeked);
            }
        }
        // The rare cases are boxed, here and below: a service allocates the future of each request.
        let (decided, shadow_results) = match plan.shadow_checks() {
            [] => (self.decide_or_deny(&plan).await, Vec::new()),
            shadow => Box::pin(join(self.decide_or_deny(&plan), self.decide_shadow(shadow))).await,
        };
        let (passes, decisions) = decided?;
        Ok(plan.decision(passes, decisions, shadow_results))
    }

    /// Returns whether the checks pass together, and their decisions.
    async fn decide_or_deny(&self, plan: &Plan<'_>) -> Result<(bool, Vec<Decision>), Error> {
        // A single check is left to `decide`, because it can spend from a lease.
        if plan.charges_each() && plan.checks().len() > 1 {
            return Box::pin(self.decide_or_deny_each(plan)).await;
        }
        match self.decide(plan).await {
            // Nothing was charged, except units that were used.
            Err(error) if error.is_over_capacity() => {
                let decisions = Box::pin(self.peek_costs(plan.checks())).await?;
                Ok((plan.charges_each(), decisions))
            }
            decided => decided,
        }
    }

    async fn decide_or_deny_each(&self, plan: &Plan<'_>) -> Result<(bool, Vec<Decision>), Error> {
        let decided = self.decide_each(plan.checks()).await;
        let decisions = plan.checks().iter().zip(decided).map(async |(check, decided)| match decided {
            Err(error) if error.is_over_capacity() => Ok(check.check().deny(peek(check).await?)),
            decided => decided,
        });
        Ok((true, try_join_all(decisions).await?))
    }

    /// Checks gates in shadow mode. One that would deny a cost above its limit shows the state of the limit.
    async fn decide_shadow(&self, checks: &[PlannedCheck<'_>]) -> Vec<Result<Decision, Error>> {
        let decided = self.decide_each(checks).await;
        let decisions = checks.iter().zip(decided).map(async |(check, decided)| match decided {
            Ok(decided) if decided.source() == Source::Open && check.cost() > decided.limit() => {
                peek(check).await.map(|peeked| peeked.into_denied().into_shadow())
            }
            decided => decided,
        });
        join_all(decisions).await
    }

    /// Peeks, and denies the checks whose costs are above the units that are left.
    async fn peek_costs(&self, checks: &[PlannedCheck<'_>]) -> Result<Vec<Decision>, Error> {
        let mut decisions = try_join_all(checks.iter().map(peek)).await?;
        for (at, decision) in decisions.iter_mut().enumerate() {
            let check = &checks[at];
            // Checks of one key are charged as one.
            let is_of_key = |other: &&PlannedCheck<'_>| {
                other.gate().name() == check.gate().name() && other.key() == check.key()
            };
            let of_key = checks[..=at].iter().filter(is_of_key);
            let cost = of_key.fold(0_u64, |sum, other| sum.saturating_add(other.cost()));
            let switch = check.gate().name().and_then(|name| self.limiter().control().current_switch(name));
            // A switch decides regardless of the cost. Units that were used have been charged already.
            if cost > decision.remaining() && switch.is_none() && !check.gate().charges_used() {
                *decision = check.check().deny(decision.clone());
            }
        }
        Ok(decisions)
    }
}

async fn peek(check: &PlannedCheck<'_>) -> Result<Decision, Error> {
    check.gate().key(check.key()).peek().await
}

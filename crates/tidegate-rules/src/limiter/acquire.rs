//! Decides requests whose rules can be in flight, and holds their permits.

#[cfg(doctest)]
mod refused_lines;

use futures_util::future::{join, join_all};
use tidegate::{Acquired, Decision, Error, Permit, Permits};

use super::RulesLimiter;
use super::plan::{Plan, PlannedCheck};
use crate::decision::RulesDecision;
use crate::descriptor::Descriptor;

/// # Requests in flight
impl RulesLimiter {
    /// Checks a request as [`check`](Self::check) does, and acquires a permit of each matching rule with
    /// `in_flight`. Hold the permits until the request has ended: [`Acquired`] shows how. If no rule in flight
    /// matches an admitted request, they hold nothing.
    ///
    /// Permits and charges are one atomic step, as in [`check`](Self::check): a denied request holds nothing.
    /// With `charge: each` and in shadow mode, each permit is acquired on its own, and released if the request
    /// is denied.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases all permits that it has acquired. Rates can be charged.
    pub async fn acquire(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Result<Acquired<Permits, RulesDecision>, Error> {
        let plan = self.plan(domain, descriptors);
        let shadow = join_all(plan.shadow_checks().iter().map(acquire));
        let (decided, shadow) = join(self.acquire_checks(&plan), shadow).await;
        let (passes, decisions, mut permits) = decided?;
        let (mut shadow_results, mut shadow_permits) = (Vec::new(), Permits::default());
        for result in shadow {
            shadow_results.push(result.map(|(decision, held)| {
                shadow_permits.extend(held);
                decision
            }));
        }
        let decision = plan.decision(passes, decisions, shadow_results);
        if !decision.is_allowed() {
            return Ok(Acquired::Denied(decision));
        }
        permits.extend(shadow_permits.into_each());
        Ok(Acquired::Admitted(permits, decision))
    }

    /// Returns whether the checks pass together, their decisions and their permits.
    async fn acquire_checks(&self, plan: &Plan<'_>) -> Result<(bool, Vec<Decision>, Permits), Error> {
        let checks = plan.checks();
        if !checks.iter().any(PlannedCheck::is_in_flight) {
            let (passes, decisions) = self.decide(plan).await?;
            return Ok((passes, decisions, Permits::default()));
        }
        if checks.len() > 1 && !plan.charges_each() {
            let checks = checks.iter().map(PlannedCheck::check);
            return Ok(match self.limiter().acquire_all(checks).await? {
                Acquired::Admitted(permits, decision) => (true, decision.each_alone().to_vec(), permits),
                Acquired::Denied(decision) => (false, decision.each_alone().to_vec(), Permits::default()),
            });
        }
        let (mut decisions, mut permits) = (Vec::with_capacity(checks.len()), Permits::default());
        for result in join_all(checks.iter().map(acquire)).await {
            let (decision, held) = result?;
            decisions.push(decision);
            permits.extend(held);
        }
        Ok((true, decisions, permits))
    }
}

/// Decides one check, in flight or not.
async fn acquire(check: &PlannedCheck<'_>) -> Result<(Decision, Option<Permit>), Error> {
    if !check.is_in_flight() {
        return Ok((check.check().check().await?, None));
    }
    Ok(match check.check().acquire().await? {
        Acquired::Admitted(permit, decision) => (decision, Some(permit)),
        Acquired::Denied(decision) => (decision, None),
    })
}

//! Decides how many of n equal requests may pass.

use futures_util::future::{join, join_all};
use tidegate::{Decision, Error, Grant};

use super::plan::{Plan, PlannedCheck};
use super::{RulesLimiter, ensure_no_permit};
use crate::decision::RulesDecision;
use crate::descriptor::Descriptor;
use crate::rule::Rule;

/// The part of a grant that rules decide that can deny.
struct Granted {
    granted: u64,
    /// The joint decision of the rules if they were decided together, otherwise true.
    passes: bool,
    decisions: Vec<Decision>,
}

/// # Partial grants
impl RulesLimiter {
    /// Decides how many of `n` requests with these descriptors may pass, and charges the matching rules for exactly
    /// those, in one atomic step. So the rule with the fewest units decides. For a batch whose size adapts to the limits.
    ///
    /// If no rule limits the request, all `n` pass. `n` = 0, and descriptors with 0 [hits](Descriptor::hits) alone, peek.
    /// As in [`check`](Self::check), rules in shadow mode restrict nothing, and in a domain with `charge: each` a rule is
    /// charged for the requests that it admits, also for those that another rule denies. Of the rules in quota mode, the
    /// one that admits most decides.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn take_up_to(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        n: u64,
    ) -> Result<Grant<RulesDecision>, Error> {
        let plan = self.plan(domain, descriptors);
        ensure_no_permit(&plan)?;
        let (granted, shadow) = join(self.grant(&plan, n), take_each(plan.shadow_checks(), n)).await;
        let Granted { granted, passes, decisions } = granted?;
        let shadow_results = shadow.into_iter().map(|grant| grant.map(Grant::into_decision));
        let decision = plan.decision(passes, decisions, shadow_results);
        let granted = if decision.is_allowed() { granted } else { 0 };
        Ok(Grant::new(granted, n, decision))
    }

    async fn grant(&self, plan: &Plan<'_>, n: u64) -> Result<Granted, Error> {
        match plan.checks() {
            [] => Ok(Granted { granted: n, passes: true, decisions: Vec::new() }),
            // A separate case, because only a single check can spend from a lease.
            [check] => {
                let grant = check.check().take_up_to(n).await?;
                let granted = grant.granted();
                Ok(Granted { granted, passes: true, decisions: vec![grant.into_decision()] })
            }
            checks if plan.charges_each() => {
                let grants = take_each(checks, n).await.into_iter().collect::<Result<Vec<_>, _>>()?;
                let granted = of_each(plan, &grants, n);
                let decisions = grants.into_iter().map(Grant::into_decision).collect();
                Ok(Granted { granted, passes: true, decisions })
            }
            checks => {
                let grant = self.limiter().take_up_to(checks.iter().map(PlannedCheck::check), n).await?;
                let (granted, all) = (grant.granted(), grant.into_decision());
                Ok(Granted { granted, passes: all.is_allowed(), decisions: all.into_each_alone() })
            }
        }
    }
}

async fn take_each(checks: &[PlannedCheck<'_>], n: u64) -> Vec<Result<Grant, Error>> {
    join_all(checks.iter().map(|check| check.check().take_up_to(n))).await
}

/// Returns how many of `n` requests pass if each rule decided on its own.
fn of_each(plan: &Plan<'_>, grants: &[Grant], n: u64) -> u64 {
    let charged = || plan.checks().iter().zip(grants).filter(|(check, _)| check.cost() > 0);
    if charged().next().is_none() {
        return 0;
    }
    let of_quotas = |is_quota: bool| {
        let is_of = move |check: &PlannedCheck<'_>| plan.rule(check).is_some_and(Rule::is_quota) == is_quota;
        charged().filter(move |(check, _)| is_of(check)).map(|(_, grant)| grant.granted())
    };
    of_quotas(false).min().unwrap_or(n).min(of_quotas(true).max().unwrap_or(n))
}

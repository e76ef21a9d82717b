//! Decides requests: the checks that can deny together, and those in shadow mode apart.

use futures_util::future::join;
use tidegate::{Acquired, Error, Grant, Permits};

use super::RulesLimiter;
use super::mode::{Mode, Take};
use super::plan::{Plan, PlannedCheck};
use super::take::{Taken, TakenAlone, deny_costs, peek_each, take, take_shadow};
use crate::decision::RulesDecision;
use crate::descriptor::Descriptor;
use crate::rule::Rule;

/// The results of the checks that can deny, and of those in shadow mode.
type Results = (Result<Taken, Error>, Vec<Result<TakenAlone, Error>>);

/// The result of [`RulesLimiter::decide`]: the decision, and what the request took.
#[must_use = "dropping the permits of a request releases them"]
#[derive(Debug)]
pub struct RulesGrant {
    decision: RulesDecision,
    granted: u64,
    wanted: u64,
    permits: Permits,
}

impl RulesGrant {
    /// Returns the decision. Releases the permits that [`Mode::in_flight`] has acquired.
    pub fn into_decision(self) -> RulesDecision {
        self.decision
    }

    /// Returns how many of the requests of [`Mode::up_to`] pass.
    pub fn into_grant(self) -> Grant<RulesDecision> {
        Grant::new(self.granted, self.wanted, self.decision)
    }

    /// Returns the permits that [`Mode::in_flight`] has acquired.
    pub fn into_acquired(self) -> Acquired<Permits, RulesDecision> {
        match self.decision.is_allowed() {
            true => Acquired::Admitted(self.permits, self.decision),
            false => Acquired::Denied(self.decision),
        }
    }
}

impl RulesLimiter {
    /// Decides a request with these descriptors as [`check`](Self::check) does, with the options of `mode`.
    ///
    /// A descriptor with 0 [hits](Descriptor::hits) asks whether a unit is left. If there is none, the request is denied,
    /// and beside descriptors with hits nothing is charged, except units that were used and in a domain with `charge: each`.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::check_all`](tidegate::Limiter::check_all), and [`Error::is_config`] if a matching rule is in
    /// flight, unless `mode` peeks or acquires: call [`acquire`](Self::acquire).
    ///
    /// - [`Error::is_over_capacity`] if a descriptor's hits cost more than the limit, unless `mode` denies it:
    ///   [`Mode::deny_above_limit`].
    /// - [`Error::is_config`] on a Redis Cluster if the keys of a request are in different slots and its
    ///   domain does not use `charge: each`.
    ///
    /// Errors of rules in shadow mode are not returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases all permits that it has acquired. Rates can be charged.
    pub async fn decide(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        mode: &Mode,
    ) -> Result<RulesGrant, Error> {
        let began = self.limiter().stopwatch();
        let mut plan = self.plan(domain, descriptors);
        if matches!(mode.take, Take::Check | Take::UpTo(_)) {
            ensure_no_permit(&plan)?;
        }
        // The rare cases are boxed, here and below: a service allocates the future of each request.
        if mode.denies_above_limit && !plan.uncharged().is_empty() {
            Box::pin(self.show_uncharged(&mut plan, mode)).await;
        }
        let (taken, shadow) = match mode.take != Take::Peek && plan.has_peeks_beside_charges() {
            true => Box::pin(self.take_unless_peeks_deny(&plan, mode)).await,
            false => self.take(&plan, mode).await,
        };
        let Taken { passes, granted, decisions, mut permits } = taken?;
        let decisions = plan.checks().iter().zip(decisions);
        let decisions: Vec<_> =
            decisions.map(|(check, decision)| mode.shown(plan.rule(check), check, decision)).collect();
        let (mut shadow_results, mut shadow_permits) = (Vec::with_capacity(shadow.len()), Vec::new());
        for (check, taken) in plan.shadow_checks().iter().zip(shadow) {
            shadow_results.push(taken.map(|alone| {
                shadow_permits.extend(alone.permit);
                mode.shown(plan.rule(check), check, alone.decision)
            }));
        }
        let mut decision = plan.conclude(passes, decisions, shadow_results);
        if mode.charges_denied() && decision.has_denial() {
            Box::pin(self.charge_denied(&plan, &mut decision, mode, &began)).await;
        }
        let wanted = mode.take.wanted();
        if !decision.is_allowed() {
            return Ok(RulesGrant { decision, granted: 0, wanted, permits: Permits::default() });
        }
        permits.extend(shadow_permits);
        Ok(RulesGrant { decision, granted, wanted, permits })
    }

    async fn take(&self, plan: &Plan<'_>, mode: &Mode) -> Results {
        let limiter = self.limiter();
        match plan.shadow_checks() {
            [] => (take(limiter, plan, mode).await, Vec::new()),
            shadow => {
                Box::pin(join(take(limiter, plan, mode), take_shadow(limiter, shadow, mode.take))).await
            }
        }
    }

    /// Peeks first: Redis decides a group of checks without those that cost nothing.
    async fn take_unless_peeks_deny(&self, plan: &Plan<'_>, mode: &Mode) -> Results {
        match self.deny_by_peeks(plan, mode).await {
            Ok(None) => self.take(plan, mode).await,
            Ok(Some(denied)) => {
                (Ok(denied), take_shadow(self.limiter(), plan.shadow_checks(), Take::Peek).await)
            }
            Err(error) => (Err(error), Vec::new()),
        }
    }

    /// Returns the denial by a check that costs nothing, if there is one. Charges only units that were used.
    async fn deny_by_peeks(&self, plan: &Plan<'_>, mode: &Mode) -> Result<Option<Taken>, Error> {
        let (limiter, checks) = (self.limiter(), plan.checks());
        let mut decisions = peek_each(plan, checks, mode).await?;
        let mut peeks = checks.iter().zip(&decisions).filter(|(check, _)| check.cost() == 0);
        if peeks.all(|(_, decision)| decision.is_allowed()) {
            return Ok(None);
        }
        let is_used = |at: &usize| checks[*at].cost() > 0 && checks[*at].gate().charges_used();
        let used: Vec<usize> = (0..checks.len()).filter(is_used).collect();
        let charged = limiter.check_each(used.iter().map(|&at| checks[at].check())).await;
        for (at, charged) in used.into_iter().zip(charged) {
            // The request is denied, whether these units could be charged or not.
            decisions[at] = charged.unwrap_or_else(|_| decisions[at].clone());
        }
        deny_costs(limiter, checks, &mut decisions);
        Ok(Some(Taken::denied(decisions)))
    }

    /// Shows the limits that a static denial leaves out. The request is denied also if their states are not known.
    async fn show_uncharged(&self, plan: &mut Plan<'_>, mode: &Mode) {
        if let Ok(mut peeked) = peek_each(plan, plan.uncharged(), mode).await {
            deny_costs(self.limiter(), plan.uncharged(), &mut peeked);
            plan.show_peeks(peeked);
        }
    }
}

/// Fails if a rule limits requests in flight: a check would hold no permit.
fn ensure_no_permit(plan: &Plan<'_>) -> Result<(), Error> {
    let mut checks = plan.checks().iter().chain(plan.shadow_checks());
    checks.find(|check| check.is_in_flight()).map_or(Ok(()), |check: &PlannedCheck<'_>| {
        let path = plan.rule(check).map(Rule::path).unwrap_or_default();
        Err(Error::config(format!(
            "the rule `{path}` limits requests in flight: call `RulesLimiter::acquire` instead of `check`, and hold \
             the permits until the request has ended"
        )))
    })
}

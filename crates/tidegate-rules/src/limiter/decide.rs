//! Decides requests: the checks that can deny together, and those in shadow mode apart.

use tidegate::{Error, Permits};

use super::RulesLimiter;
use super::mode::{Mode, Take};
use super::plan::Plan;
use super::take::{Taken, deny_costs, peek_each, take};
use crate::decision::RulesDecision;
use crate::descriptor::Descriptor;
use crate::rule::Rule;

/// The result of [`RulesLimiter::decide`].
#[must_use = "dropping the permits of a request releases them"]
#[derive(Debug)]
#[non_exhaustive]
pub struct RulesGrant {
    /// The decision.
    pub decision: RulesDecision,
    /// How many requests pass: of [`Mode::up_to`] up to n, of a peek none, else up to 1.
    pub granted: u64,
    /// The permits that [`Mode::in_flight`] has acquired. A denied request holds none.
    pub permits: Permits,
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
        let mut plan = self.planned(domain, descriptors, mode.take == Take::Peek);
        if matches!(mode.take, Take::Check | Take::UpTo(_)) {
            ensure_no_permit(&plan)?;
        }
        if matches!(mode.take, Take::UpTo(_)) {
            plan.leave_out_used();
        }
        // The rare cases are boxed: a service allocates the future of each request.
        let is_denied = mode.take != Take::Peek
            && plan.has_peeks_beside_charges()
            && Box::pin(decide_peeks(&mut plan, mode)).await?;
        if mode.denies_above_limit && !plan.uncharged().is_empty() {
            Box::pin(show_uncharged(&mut plan, mode)).await;
        }
        let (taken, shadow) = take(&plan, mode, is_denied).await;
        let Taken { passes, granted, decisions, mut permits } = taken?;
        // The decisions first, so that their list is used again.
        let decisions = decisions.into_iter().zip(plan.checks());
        let decisions: Vec<_> =
            decisions.map(|(decision, check)| mode.shown(&plan, check, decision)).collect();
        let shadow: Vec<_> = plan
            .shadow_checks()
            .iter()
            .zip(shadow)
            .map(|(check, taken)| {
                let (decision, held) = taken?;
                permits.extend(held.into_each());
                Ok(mode.shown(&plan, check, decision))
            })
            .collect();
        let mut decision = plan.conclude(passes, decisions, shadow);
        let granted = if decision.is_allowed() { granted } else { 0 };
        if !decision.is_allowed() {
            // Before the charge, which waits for Redis.
            permits = Permits::default();
        }
        if mode.charges_denied() && decision.has_denial() {
            Box::pin(self.charge_denied(&plan, &mut decision, mode, &began)).await;
        }
        Ok(RulesGrant { decision, granted, permits })
    }
}

impl Plan<'_> {
    /// Decides the checks that cost nothing, which a group leaves out, and returns whether one of them denies. Then the
    /// request is denied by [static denials](Self::static_denials), and only checks of units that were used are left.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::check_each`](tidegate::Limiter::check_each) reports for a check.
    pub async fn decide_peeks(&mut self) -> Result<bool, Error> {
        decide_peeks(self, &Mode::check()).await
    }
}

/// Denies the request if a check that costs nothing denies.
async fn decide_peeks(plan: &mut Plan<'_>, mode: &Mode) -> Result<bool, Error> {
    let peeks = plan.checks().iter().filter(|check| check.cost() == 0);
    let peeked = peek_each(plan, peeks, mode).await?;
    let is_denied = peeked.iter().any(|peeked| !peeked.is_allowed());
    match is_denied {
        true => plan.deny(peeked, mode.take.charges_used()),
        false => plan.show_admitted(peeked),
    }
    Ok(is_denied)
}

/// Shows the limits that a denial leaves out. The request is denied also if their states are not known.
async fn show_uncharged(plan: &mut Plan<'_>, mode: &Mode) {
    if let Ok(mut peeked) = peek_each(plan, plan.uncharged(), mode).await {
        deny_costs(plan.uncharged(), &mut peeked, mode);
        plan.show_peeks(peeked);
    }
}

/// Fails if a rule limits requests in flight: a check would hold no permit.
fn ensure_no_permit(plan: &Plan<'_>) -> Result<(), Error> {
    let mut checks = plan.checks().iter().chain(plan.shadow_checks());
    checks.find(|check| check.is_in_flight()).map_or(Ok(()), |check| {
        let path = plan.rule(check).map(Rule::path).unwrap_or_default();
        Err(Error::config(format!(
            "the rule `{path}` limits requests in flight: call `RulesLimiter::acquire` instead of `check`, and hold \
             the permits until the request has ended"
        )))
    })
}

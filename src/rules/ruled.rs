//! Rules bound to a limiter: checks requests.

mod plan;

use std::sync::Arc;

use futures_util::future::join;

pub(crate) use self::plan::{Plan, PlannedCheck};
use super::decision::RulesDecision;
use super::descriptor::Descriptor;
use super::load::Rules;
use super::rule::{Limit, Rule};
use crate::check::CheckRef;
use crate::decision::Decision;
use crate::error::Error;
use crate::gate::Gate;
#[cfg(feature = "tower")]
use crate::limiter::Core;
use crate::limiter::Limiter;

/// Rules and their gates, from [`Rules::bind`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RulesLimiter(Arc<RulesLimiterInner>);

#[derive(Debug)]
struct RulesLimiterInner {
    limiter: Limiter,
    rules: Rules,
    gates: Vec<RuleGates>,
}

/// The gates of a rule: for its limit, then for each of its tiers. `None` for a limit that counts nothing.
#[derive(Debug)]
struct RuleGates(Vec<Option<Gate>>);

impl RulesLimiter {
    pub(super) fn new(limiter: &Limiter, rules: Rules) -> Self {
        let gates = rules.with_gate_names().map(|(rule, name)| RuleGates::new(limiter, rule, name)).collect();
        Self(Arc::new(RulesLimiterInner { limiter: limiter.clone(), rules, gates }))
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    #[cfg(feature = "tower")]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.limiter.core
    }

    /// Checks whether a request with these descriptors may pass.
    ///
    /// At most one rule matches each descriptor. The request passes if none of them denies it, so it also
    /// passes if no rule matches.
    ///
    /// All matching rules are charged in one atomic step, or none is. In a domain with `charge: each`, each
    /// rule is checked independently. A rule that admits is then charged even if another one denies. Rules in
    /// shadow mode are always checked independently, concurrently with the others.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::check_all`]:
    ///
    /// - [`Error::is_over_capacity`] if a descriptor's hits cost more than the limit.
    /// - [`Error::is_config`] on a Redis Cluster if the keys of a request are in different slots and its
    ///   domain does not use `charge: each`.
    ///
    /// Errors of rules in shadow mode are not returned.
    pub async fn check(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Result<RulesDecision, Error> {
        let plan = self.plan(domain, descriptors);
        let (decided, shadow_results) = join(self.decide(&plan), self.decide_each(&plan.watched)).await;
        let (passes, decisions) = decided?;
        Ok(plan.decision(passes, decisions, shadow_results))
    }

    /// Returns whether all checks pass, and their decisions.
    async fn decide(&self, plan: &Plan<'_>) -> Result<(bool, Vec<Decision>), Error> {
        let decisions = match &*plan.wanted {
            [] => Vec::new(),
            // A separate case, because only a single check can spend from a lease.
            [check] => vec![check.gate.check_cost(&check.key, check.cost).await?],
            wanted if plan.charges_each => {
                self.decide_each(wanted).await.into_iter().collect::<Result<_, _>>()?
            }
            wanted => {
                let checks = wanted.iter().map(|check| check.gate.key(&check.key).cost(check.cost));
                let all = self.0.limiter.check_all(checks).await?;
                return Ok((all.is_allowed(), all.decisions().to_vec()));
            }
        };
        Ok((decisions.iter().all(Decision::is_allowed), decisions))
    }

    async fn decide_each(&self, checks: &[PlannedCheck<'_>]) -> Vec<Result<Decision, Error>> {
        if checks.is_empty() {
            return Vec::new();
        }
        let checks: Vec<_> =
            checks.iter().map(|check| CheckRef::new(check.gate, &check.key, check.cost)).collect();
        self.0.limiter.core.check_each(&checks).await
    }
}

impl RuleGates {
    fn new(limiter: &Limiter, rule: &Rule, name: &str) -> Self {
        let gate = |limit: Limit| {
            let Limit::Quota(quota) = limit else { return None };
            let mut gate = limiter.gate(name, quota).shadow(rule.shadow);
            if let Some(on_failure) = rule.settings.on_failure {
                gate = gate.on_failure(on_failure);
            }
            Some(match rule.settings.lease {
                Some(lease) => gate.leased(lease),
                None => gate,
            })
        };
        let tiers = rule.settings.tiers.iter().map(|(_, limit)| *limit);
        Self(std::iter::once(rule.settings.limit).chain(tiers).map(gate).collect())
    }
}

//! Rules over a limiter: what a service asks.

mod plan;

use std::sync::Arc;

use futures_util::future::join;

pub(crate) use self::plan::{Plan, Wanted};
use super::descriptor::Descriptor;
use super::load::Rules;
use super::rule::{Limit, Rule};
use super::ruling::Ruling;
use crate::ask::AskRef;
use crate::decision::Decision;
use crate::error::Error;
use crate::gate::Gate;
#[cfg(feature = "tower")]
use crate::limiter::Core;
use crate::limiter::Limiter;

/// Rules with their gates, from [`Rules::bind`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RuledLimiter(Arc<Bound>);

#[derive(Debug)]
struct Bound {
    limiter: Limiter,
    rules: Rules,
    gates: Vec<Gates>,
}

/// A rule's: for its limit, and for that of each of its tiers. `None` where
/// there is nothing to count.
#[derive(Debug)]
struct Gates(Vec<Option<Gate>>);

impl RuledLimiter {
    pub(super) fn new(limiter: &Limiter, rules: Rules) -> Self {
        let gates = rules.with_gate_names().map(|(rule, name)| Gates::new(limiter, rule, name)).collect();
        Self(Arc::new(Bound { limiter: limiter.clone(), rules, gates }))
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    #[cfg(feature = "tower")]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.limiter.core
    }

    /// May a request pass that has these descriptors? Each meets at most one
    /// rule; the request passes if none of them denies it, so also if no rule
    /// is met at all.
    ///
    /// All rules are charged in one atomic step, or none is. Where the domain
    /// says `charge: each`, each is asked by itself, and those that admit are
    /// charged also if another denies. Rules in shadow mode are always asked
    /// by themselves, at the same time.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check_all`]: [`Error::is_over_capacity`] if a descriptor's
    /// hits cost more than the limit; over a Redis Cluster [`Error::is_config`]
    /// if keys of a request lie in different slots and its domain is not charged
    /// `each`. Errors of rules in shadow mode are not told.
    pub async fn check(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Result<Ruling, Error> {
        let plan = self.plan(domain, descriptors);
        let (decided, seen) = join(self.decide(&plan), self.decide_each(&plan.watched)).await;
        let (passes, decisions) = decided?;
        Ok(plan.ruling(passes, decisions, seen))
    }

    /// Whether all pass, and a decision for each.
    async fn decide(&self, plan: &Plan<'_>) -> Result<(bool, Vec<Decision>), Error> {
        let decisions = match &*plan.wanted {
            [] => Vec::new(),
            // The only way that spends from leases.
            [ask] => vec![ask.gate.check_cost(&ask.key, ask.cost).await?],
            wanted if plan.charges_each => {
                self.decide_each(wanted).await.into_iter().collect::<Result<_, _>>()?
            }
            wanted => {
                let asks = wanted.iter().map(|ask| ask.gate.ask(&ask.key).cost(ask.cost));
                let all = self.0.limiter.check_all(asks).await?;
                return Ok((all.is_allowed(), all.decisions().to_vec()));
            }
        };
        Ok((decisions.iter().all(Decision::is_allowed), decisions))
    }

    async fn decide_each(&self, wanted: &[Wanted<'_>]) -> Vec<Result<Decision, Error>> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let asks: Vec<_> = wanted.iter().map(|ask| AskRef::new(ask.gate, &ask.key, ask.cost)).collect();
        self.0.limiter.core.check_each(&asks).await
    }
}

impl Gates {
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

//! Rules over a limiter: what a service asks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::descriptor::Descriptor;
use super::load::Rules;
use super::rule::{Limit, Rule};
use super::ruling::{Outcome, Ruling, Verdict};
use crate::ask::AskRef;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::gate::Gate;
use crate::gate_name::GateName;
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

/// A descriptor and the rule that it meets.
struct Met<'r> {
    index: usize,
    rule: &'r Arc<Rule>,
    limit: Limit,
    gate: Option<&'r Gate>,
}

/// A gate to ask, and which descriptor wants it.
struct Wanted<'r> {
    at: usize,
    gate: &'r Gate,
    key: Vec<u8>,
    cost: u64,
}

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
        let met: Vec<_> = descriptors.iter().map(|descriptor| self.meet(domain, descriptor)).collect();
        let replacing: Vec<&str> = met
            .iter()
            .flatten()
            .flat_map(|met| met.rule.settings.replaces.iter().map(String::as_str))
            .collect();
        let (mut wanted, mut watched) = (Vec::new(), Vec::new());
        let mut outcomes = Vec::with_capacity(descriptors.len());
        for (at, (met, descriptor)) in met.iter().zip(descriptors).enumerate() {
            let Some(met) = met else {
                outcomes.push(Outcome::NoRule);
                continue;
            };
            outcomes.push(match met.limit {
                Limit::Unlimited => Outcome::Unlimited,
                _ if met.rule.name().is_some_and(|name| replacing.contains(&name)) => Outcome::Replaced,
                Limit::Nothing(window) => {
                    let name = self.0.rules.gate_name(met.index);
                    let decision = refusal(name, window, met.rule.shadow);
                    if descriptor.hits > 0 {
                        self.0.limiter.core.tell_decided(&decision);
                    }
                    Outcome::Decided(decision)
                }
                Limit::Quota(_) => {
                    let is_watched = met.rule.shadow;
                    if let Some(gate) = met.gate {
                        let cost = descriptor.hits.saturating_mul(met.rule.settings.cost);
                        let ask = Wanted { at, gate, key: met.rule.key(descriptor), cost };
                        if is_watched { watched.push(ask) } else { wanted.push(ask) }
                    }
                    if is_watched { Outcome::Unanswered } else { Outcome::NotAsked }
                }
            });
        }
        let charges_each = self.0.rules.charges_each(domain);
        let is_refused = |outcome: &Outcome| matches!(outcome, Outcome::Decided(it) if !it.is_allowed());
        if !charges_each && outcomes.iter().any(is_refused) {
            // Nothing is charged for what is refused anyway.
            wanted.clear();
        }
        let (decisions, seen) = join(self.decide(&wanted, charges_each), self.decide_each(&watched)).await;
        let (passes, decisions) = decisions?;
        for (ask, decision) in wanted.iter().zip(decisions) {
            outcomes[ask.at] = Outcome::Decided(decision);
        }
        for (ask, decision) in watched.iter().zip(seen) {
            if let Ok(decision) = decision {
                outcomes[ask.at] = Outcome::Decided(decision);
            }
        }
        let verdicts = met.into_iter().zip(descriptors).zip(outcomes).map(|((met, descriptor), outcome)| {
            let rule = met.map(|met| met.rule.clone());
            let metric = rule.as_ref().and_then(|rule| rule.metric(descriptor));
            Verdict { rule, outcome, metric }
        });
        Ok(Ruling::new(passes, verdicts.collect()))
    }

    fn meet(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<Met<'_>> {
        let index = self.0.rules.find_index(domain, descriptor)?;
        let rule = self.0.rules.shared(index);
        let (tier, limit) = rule.limit(descriptor.tier);
        Some(Met { index, rule, limit, gate: self.0.gates[index].0[tier].as_ref() })
    }

    /// Whether all pass, and a decision for each.
    async fn decide(
        &self,
        wanted: &[Wanted<'_>],
        charges_each: bool,
    ) -> Result<(bool, Vec<Decision>), Error> {
        let decisions = match wanted {
            [] => Vec::new(),
            // The only way that spends from leases.
            [ask] => vec![ask.gate.check_cost(&ask.key, ask.cost).await?],
            _ if charges_each => self.decide_each(wanted).await.into_iter().collect::<Result<_, _>>()?,
            _ => {
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

/// What a rule that denies all says: nobody has to be asked for it.
fn refusal(gate: GateName, window: Duration, is_watched: bool) -> Decision {
    Decision {
        gate,
        allowed: is_watched,
        limit: 0,
        remaining: 0,
        retry_after: window,
        reset_after: window,
        delay: Duration::ZERO,
        source: Source::Rule,
        shadow: is_watched,
        now_us: 0,
    }
}

//! The checks that a request needs under one version of the rules.

use std::sync::Arc;

use super::RuledLimiter;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::gate::Gate;
use crate::gate_name::GateName;
use crate::limiter::CLOSED_RETRY_US;
use crate::orders::Switch;
use crate::rules::descriptor::Descriptor;
use crate::rules::rule::{Limit, Rule};
use crate::rules::ruling::{Outcome, Ruling, Verdict};

/// The rules decided without a check, and the checks to make.
pub(crate) struct Plan<'r> {
    verdicts: Vec<Verdict>,
    /// Checks of rules that can deny.
    pub(crate) wanted: Vec<Wanted<'r>>,
    /// Checks of rules in shadow mode, each independent of all others.
    pub(crate) watched: Vec<Wanted<'r>>,
    /// Whether the checks in `wanted` are independent too.
    pub(crate) charges_each: bool,
}

/// A gate to check.
pub(crate) struct Wanted<'r> {
    /// The descriptor's index.
    at: usize,
    pub(crate) gate: &'r Gate,
    pub(crate) key: Vec<u8>,
    pub(crate) cost: u64,
}

/// A descriptor and its matching rule.
struct Met<'r> {
    index: usize,
    rule: &'r Arc<Rule>,
    limit: Limit,
    gate: Option<&'r Gate>,
}

impl RuledLimiter {
    /// Plans the checks of a request. Notifies the observer of rules that deny without a check.
    pub(crate) fn plan(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Plan<'_> {
        let met: Vec<_> = descriptors.iter().map(|descriptor| self.meet(domain, descriptor)).collect();
        let replacing: Vec<&str> = met
            .iter()
            .flatten()
            .flat_map(|met| met.rule.settings.replaces.iter().map(String::as_str))
            .collect();
        let charges_each = self.0.rules.charges_each(domain);
        let (wanted, watched) = (Vec::with_capacity(met.len()), Vec::new());
        let mut plan = Plan { verdicts: Vec::with_capacity(met.len()), wanted, watched, charges_each };
        let mut is_refused = false;
        for (at, (met, descriptor)) in met.into_iter().zip(descriptors).enumerate() {
            let Some(Met { index, rule, limit, gate }) = met else {
                plan.verdicts.push(Verdict { rule: None, outcome: Outcome::NoRule, metric: None });
                continue;
            };
            let name = self.0.rules.gate_name(index);
            let switch = self.0.limiter.core.switch(&name);
            let outcome = match limit {
                Limit::Unlimited if switch != Some(Switch::Closed) => Outcome::Unlimited,
                _ if rule.name().is_some_and(|name| replacing.contains(&name)) => Outcome::Replaced,
                Limit::Unlimited | Limit::Nothing(_) => {
                    let decision = unasked(name, limit, switch, rule.shadow);
                    if descriptor.hits > 0 {
                        self.0.limiter.core.tell_decided(&decision);
                    }
                    is_refused |= !decision.is_allowed();
                    Outcome::Decided(decision)
                }
                Limit::Quota(_) => {
                    let (asks, outcome) = match rule.shadow {
                        true => (&mut plan.watched, Outcome::Unanswered),
                        false => (&mut plan.wanted, Outcome::NotAsked),
                    };
                    let cost = descriptor.hits.saturating_mul(rule.settings.cost);
                    asks.extend(gate.map(|gate| Wanted { at, gate, key: rule.key(descriptor), cost }));
                    outcome
                }
            };
            let (metric, rule) = (rule.metric(descriptor), Some(rule.clone()));
            plan.verdicts.push(Verdict { rule, outcome, metric });
        }
        if is_refused && !charges_each {
            // The request is denied, so nothing is charged.
            plan.wanted.clear();
        }
        plan
    }

    fn meet(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<Met<'_>> {
        let index = self.0.rules.find_index(domain, descriptor)?;
        let rule = self.0.rules.shared(index);
        let (tier, limit) = rule.limit(descriptor.tier.as_deref());
        Some(Met { index, rule, limit, gate: self.0.gates[index].0[tier].as_ref() })
    }
}

impl Plan<'_> {
    /// Returns the rule of a check.
    #[cfg(feature = "tower")]
    pub(crate) fn rule(&self, asked: &Wanted<'_>) -> Option<&Rule> {
        self.verdicts[asked.at].rule()
    }

    /// Returns the rules that deny without a check.
    #[cfg(feature = "tower")]
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&Rule, &Decision)> {
        let decided = self.verdicts.iter().filter(|verdict| !verdict.is_allowed());
        decided.filter_map(|verdict| Some((verdict.rule()?, verdict.decision()?)))
    }

    /// Combines the plan with the decisions on `wanted`, if they were made, and on `watched`.
    pub(crate) fn ruling(
        mut self,
        passes: bool,
        decisions: impl IntoIterator<Item = Decision>,
        seen: impl IntoIterator<Item = Result<Decision, Error>>,
    ) -> Ruling {
        let seen = self.watched.iter().zip(seen).filter_map(|(ask, it)| Some((ask.at, it.ok()?)));
        for (at, decision) in self.wanted.iter().map(|ask| ask.at).zip(decisions).chain(seen) {
            self.verdicts[at].outcome = Outcome::Decided(decision);
        }
        Ruling::new(passes, self.verdicts)
    }
}

/// Returns the decision of a rule that denies all or nothing. It needs no check; only a switch of its gate
/// can change it.
fn unasked(gate: GateName, limit: Limit, switch: Option<Switch>, is_shadow: bool) -> Decision {
    let (source, wait_us) = match (limit, switch) {
        // The retry time is one unit of the rule.
        (Limit::Nothing(window), None | Some(Switch::Shadow)) => (Source::Rule, window.as_micros() as u64),
        (_, Some(Switch::Open)) => (Source::Switch, 0),
        _ => (Source::Switch, CLOSED_RETRY_US),
    };
    let is_watched = wait_us > 0 && (is_shadow || switch == Some(Switch::Shadow));
    Decision {
        gate,
        allowed: is_watched || wait_us == 0,
        limit: 0,
        remaining: 0,
        retry_after_us: wait_us,
        reset_after_us: wait_us,
        delay_us: 0,
        source,
        shadow: is_watched,
        now_us: 0,
        stamp_us: 0,
    }
}

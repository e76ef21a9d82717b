//! The checks that a request needs under one version of the rules.

use std::sync::Arc;

use super::RulesLimiter;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::gate::Gate;
use crate::gate_name::GateName;
use crate::limiter::CLOSED_RETRY_US;
use crate::overrides::Switch;
use crate::rules::decision::{Outcome, RuleOutcome, RulesDecision};
use crate::rules::descriptor::Descriptor;
use crate::rules::rule::{Limit, Rule};

/// The outcomes that need no check, and the checks to make.
pub(crate) struct Plan<'r> {
    outcomes: Vec<RuleOutcome>,
    /// Checks of rules that can deny.
    pub(crate) wanted: Vec<PlannedCheck<'r>>,
    /// Checks of rules in shadow mode, each independent of all others.
    pub(crate) watched: Vec<PlannedCheck<'r>>,
    /// Whether the checks in `wanted` are independent too.
    pub(crate) charges_each: bool,
}

/// A check to make.
pub(crate) struct PlannedCheck<'r> {
    /// The descriptor's index.
    at: usize,
    pub(crate) gate: &'r Gate,
    pub(crate) key: Vec<u8>,
    pub(crate) cost: u64,
}

/// A descriptor and its matching rule.
struct Matched<'r> {
    index: usize,
    rule: &'r Arc<Rule>,
    limit: Limit,
    gate: Option<&'r Gate>,
}

impl RulesLimiter {
    /// Plans the checks of a request. Notifies the observer of rules that deny without a check.
    pub(crate) fn plan(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Plan<'_> {
        let matches: Vec<_> =
            descriptors.iter().map(|descriptor| self.match_rule(domain, descriptor)).collect();
        let replaced: Vec<&str> = matches
            .iter()
            .flatten()
            .flat_map(|matched| matched.rule.settings.replaces.iter().map(String::as_str))
            .collect();
        let charges_each = self.0.rules.charges_each(domain);
        let (wanted, watched) = (Vec::with_capacity(matches.len()), Vec::new());
        let mut plan = Plan { outcomes: Vec::with_capacity(matches.len()), wanted, watched, charges_each };
        let mut is_denied = false;
        for (at, (matched, descriptor)) in matches.into_iter().zip(descriptors).enumerate() {
            let Some(Matched { index, rule, limit, gate }) = matched else {
                plan.outcomes.push(RuleOutcome { rule: None, outcome: Outcome::NoRule, metric: None });
                continue;
            };
            let name = self.0.rules.gate_name(index);
            let switch = self.0.limiter.core.switch(&name);
            let outcome = match limit {
                Limit::Unlimited if switch != Some(Switch::Closed) => Outcome::Unlimited,
                _ if rule.name().is_some_and(|name| replaced.contains(&name)) => Outcome::Replaced,
                Limit::Unlimited | Limit::DenyAll(_) => {
                    let decision = decide_without_check(name, limit, switch, rule.shadow);
                    if descriptor.hits > 0 {
                        self.0.limiter.core.notify_decided(&decision);
                    }
                    is_denied |= !decision.is_allowed();
                    Outcome::Decided(decision)
                }
                Limit::Quota(_) => {
                    let (checks, outcome) = match rule.shadow {
                        true => (&mut plan.watched, Outcome::Unanswered),
                        false => (&mut plan.wanted, Outcome::NotChecked),
                    };
                    let cost = descriptor.hits.saturating_mul(rule.settings.cost);
                    checks.extend(gate.map(|gate| PlannedCheck {
                        at,
                        gate,
                        key: rule.key(descriptor),
                        cost,
                    }));
                    outcome
                }
            };
            let (metric, rule) = (rule.metric(descriptor), Some(rule.clone()));
            plan.outcomes.push(RuleOutcome { rule, outcome, metric });
        }
        if is_denied && !charges_each {
            // The request is denied, so nothing is charged.
            plan.wanted.clear();
        }
        plan
    }

    fn match_rule(&self, domain: &str, descriptor: &Descriptor<'_>) -> Option<Matched<'_>> {
        let index = self.0.rules.find_index(domain, descriptor)?;
        let rule = self.0.rules.shared(index);
        let (tier, limit) = rule.limit(descriptor.tier.as_deref());
        Some(Matched { index, rule, limit, gate: self.0.gates[index].0[tier].as_ref() })
    }
}

impl Plan<'_> {
    /// Returns the rule of a check.
    #[cfg(feature = "tower")]
    pub(crate) fn rule(&self, check: &PlannedCheck<'_>) -> Option<&Rule> {
        self.outcomes[check.at].rule()
    }

    /// Returns the rules that deny without a check.
    #[cfg(feature = "tower")]
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&Rule, &Decision)> {
        let denied = self.outcomes.iter().filter(|outcome| !outcome.is_allowed());
        denied.filter_map(|outcome| Some((outcome.rule()?, outcome.decision()?)))
    }

    /// Combines the plan with the decisions of the checks in `wanted`, if they were made, and the results of
    /// those in `watched`.
    pub(crate) fn decision(
        mut self,
        passes: bool,
        decisions: impl IntoIterator<Item = Decision>,
        shadow_results: impl IntoIterator<Item = Result<Decision, Error>>,
    ) -> RulesDecision {
        let shadow = self.watched.iter().zip(shadow_results);
        let shadow = shadow.filter_map(|(check, result)| Some((check.at, result.ok()?)));
        for (at, decision) in self.wanted.iter().map(|check| check.at).zip(decisions).chain(shadow) {
            self.outcomes[at].outcome = Outcome::Decided(decision);
        }
        RulesDecision::new(passes, self.outcomes)
    }
}

/// Returns the decision of a rule that denies every request or none. Only a switch of its gate can change the
/// decision, so no check is needed.
fn decide_without_check(gate: GateName, limit: Limit, switch: Option<Switch>, is_shadow: bool) -> Decision {
    let (source, wait_us) = match (limit, switch) {
        // The retry time is one window of the rule.
        (Limit::DenyAll(window), None | Some(Switch::Shadow)) => (Source::Rule, window.as_micros() as u64),
        (_, Some(Switch::Open)) => (Source::Switch, 0),
        _ => (Source::Switch, CLOSED_RETRY_US),
    };
    let is_shadow_denial = wait_us > 0 && (is_shadow || switch == Some(Switch::Shadow));
    Decision {
        gate,
        allowed: is_shadow_denial || wait_us == 0,
        limit: 0,
        remaining: 0,
        retry_after_us: wait_us,
        reset_after_us: wait_us,
        delay_us: 0,
        source,
        shadow: is_shadow_denial,
        now_us: 0,
        stamp_us: 0,
    }
}

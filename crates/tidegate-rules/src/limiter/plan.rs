//! The checks that a request needs under one version of the rules.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use tidegate::redact::RedactedKey;
use tidegate::{Check, Decision, Error, Event, Gate, Limiter, Quota, Source, Switch};

use super::gates::RuleGates;
use crate::decision::{RuleOutcome, RuleResult, RulesDecision};
use crate::descriptor::Descriptor;
use crate::limit::Limit;
use crate::load::Rules;
use crate::rule::{Rule, joined};

/// The gate of all limits that descriptors bring themselves. The gate of a rule always contains a dot.
const DESCRIPTOR_GATE: &str = "descriptor-limit";

/// The checks of a request under one version of the rules, and the outcomes that need no check. For services
/// that combine them with other checks; [`RulesLimiter::decide`](super::RulesLimiter::decide) makes them alone.
#[derive(Debug)]
pub struct Plan<'r> {
    outcomes: Vec<RuleOutcome>,
    checks: Vec<PlannedCheck<'r>>,
    shadow_checks: Vec<PlannedCheck<'r>>,
    /// The checks of a request that is denied without them: nothing is charged.
    uncharged: Vec<PlannedCheck<'r>>,
    charges_each: bool,
    is_domain_known: bool,
}

/// A check to make. `Debug` redacts the key.
pub struct PlannedCheck<'r> {
    /// The descriptor's index.
    pub(super) at: usize,
    gate: Cow<'r, Gate>,
    key: Vec<u8>,
    cost: u64,
    pub(super) is_candidate: bool,
}

impl PlannedCheck<'_> {
    /// Returns the gate of the rule, or of the descriptor's own limit.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns the key, from the descriptor's values.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the units: the descriptor's hits, times the rule's cost if there is a rule.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns whether the gate limits operations in flight: [`acquire`](Check::acquire) its check instead of
    /// [checking](Check::check) it.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        self.gate.quota().is_some_and(|quota| quota.is_in_flight())
    }

    /// Returns whether the other check has the same key of the same gate.
    pub(super) fn is_of_same_key(&self, other: &PlannedCheck<'_>) -> bool {
        (self.gate.name(), &self.key) == (other.gate.name(), &other.key)
    }

    /// Returns the quota that decides this key: that of an operator's override, or the gate's own.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.gate.effective_quota(&self.key)
    }

    /// Returns the check.
    pub fn check(&self) -> Check {
        self.gate.key(&self.key).cost(self.cost)
    }
}

/// The key consists of a request's values, which may be personal data or tokens.
impl fmt::Debug for PlannedCheck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedCheck")
            .field("at", &self.at)
            .field("gate", &self.gate)
            .field("key", &RedactedKey::new(&self.key))
            .field("cost", &self.cost)
            .finish()
    }
}

impl<'r> Plan<'r> {
    /// Plans the checks of a request.
    pub(super) fn new(
        rules: &'r Rules,
        gates: &'r [RuleGates],
        limiter: &Limiter,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Self {
        let matching = |descriptor: &Descriptor<'_>| match descriptor.limit {
            Some(_) => None,
            None => rules.find_index(domain, descriptor),
        };
        let matches: Vec<Option<usize>> = descriptors.iter().map(matching).collect();
        let settings = matches.iter().flatten().map(|&index| &rules.shared(index).settings);
        let replaced: Vec<&str> =
            settings.flat_map(|settings| settings.replaces.iter().map(|name| &**name)).collect();
        let charges_each = rules.charges_each(domain);
        let (checks, shadow_checks) = (Vec::with_capacity(matches.len()), Vec::new());
        let outcomes = Vec::with_capacity(matches.len());
        let is_domain_known = rules.has_domain(domain);
        let mut plan =
            Self { outcomes, checks, shadow_checks, uncharged: Vec::new(), charges_each, is_domain_known };
        let control = limiter.control();
        let mut is_denied = false;
        for (at, (matched, descriptor)) in matches.into_iter().zip(descriptors).enumerate() {
            let Some(index) = matched else {
                let outcome = plan.without_rule(at, limiter, domain, descriptor);
                is_denied |= !outcome.is_allowed();
                plan.outcomes.push(outcome);
                continue;
            };
            let (name, rule) = (rules.gate_name(index), rules.shared(index));
            let (tier, limit) = rule.limit_with_index(descriptor.tier.as_deref());
            let switch = control.current_switch(name);
            let result = match limit {
                Limit::Unlimited if switch != Some(Switch::Closed) => RuleResult::Unlimited,
                _ if rule.name().is_some_and(|name| replaced.contains(&name)) => RuleResult::Replaced,
                Limit::Unlimited | Limit::DenyAll(_) => {
                    let decision = decide_without_check(name, limit, switch, rule.is_shadow());
                    is_denied |= !decision.is_allowed();
                    RuleResult::Decided(decision)
                }
                Limit::Quota(_) => {
                    let cost = descriptor.hits.saturating_mul(rule.settings.cost);
                    let key = rule.key(descriptor);
                    let check = |gate: &'r Gate, key, is_candidate| {
                        let gate = Cow::Borrowed(gate);
                        PlannedCheck { at, gate, key, cost, is_candidate }
                    };
                    // A tier has numbers of its own.
                    let candidate = gates[index].candidate().filter(|_| tier == 0);
                    plan.shadow_checks.extend(candidate.map(|gate| check(gate, key.clone(), true)));
                    let (checks, result) = match rule.is_shadow() && switch != Some(Switch::Closed) {
                        true => (&mut plan.shadow_checks, RuleResult::Unanswered),
                        false => (&mut plan.checks, RuleResult::NotChecked),
                    };
                    checks.extend(gates[index].get(tier).map(|gate| check(gate, key, false)));
                    result
                }
            };
            let (metric, rule) = (rule.metric(descriptor), Some(rule.clone()));
            plan.outcomes.push(RuleOutcome { rule, result, quota: None, metric, candidate: None });
        }
        if is_denied && !charges_each {
            plan.leave_out(true);
        }
        plan
    }

    /// Leaves out the checks of a request that is denied: nothing is charged, except units that were used already if
    /// `charges_used`.
    fn leave_out(&mut self, charges_used: bool) {
        let outcomes = &self.outcomes;
        let is_used = |check: &PlannedCheck<'_>| outcomes[check.at].rule().is_some_and(Rule::charges_used);
        let is_charged = |check: &PlannedCheck<'_>| charges_used && check.cost > 0 && is_used(check);
        self.uncharged.extend(self.checks.extract_if(.., |check| !is_charged(check)));
    }

    /// Leaves out also the units used of a request that is denied without a check.
    pub(super) fn leave_out_used(&mut self) {
        if !self.charges_each && self.static_denials().next().is_some() {
            self.leave_out(false);
        }
    }

    /// Takes the checks that cost nothing out of those that are decided together: they have these decisions.
    pub(super) fn show_admitted(&mut self, peeked: Vec<Decision>) {
        let peeks = self.checks.extract_if(.., |check| check.cost == 0);
        for (check, peeked) in peeks.zip(peeked) {
            self.outcomes[check.at].decide(check.quota(), peeked);
        }
    }

    /// Denies the request by the checks that cost nothing, which have these decisions.
    pub(super) fn deny(&mut self, peeked: Vec<Decision>, charges_used: bool) {
        let peeks = self.checks.iter().filter(|check| check.cost == 0);
        for (check, denial) in peeks.zip(peeked).filter(|(_, peeked)| !peeked.is_allowed()) {
            self.outcomes[check.at].decide(check.quota(), denial);
        }
        self.leave_out(charges_used);
    }

    /// Leaves out the checks of rates, of a request that costs nothing: it still takes the slots of in-flight limits, and
    /// limits that deny every request deny it.
    pub fn leave_out_rates(&mut self) {
        self.checks.retain(PlannedCheck::is_in_flight);
        let outcomes = &mut self.outcomes;
        for check in self.shadow_checks.extract_if(.., |check| !check.is_in_flight()) {
            outcomes[check.at].result = RuleResult::NotChecked;
        }
    }

    /// Plans the check of a descriptor's own limit, if it has one.
    fn without_rule(
        &mut self,
        at: usize,
        limiter: &Limiter,
        domain: &str,
        descriptor: &Descriptor<'_>,
    ) -> RuleOutcome {
        let (result, metric) = match descriptor.limit {
            None => (RuleResult::NoRule, None),
            Some(Limit::Quota(quota)) => {
                let gate = limiter.try_gate(DESCRIPTOR_GATE, quota).expect("a constant, valid name");
                let gate = Cow::Owned(gate);
                // With the window: a count of another window would begin anew with each request.
                let window = quota.window().as_micros().to_string();
                let entries = descriptor.entries.iter().flat_map(|(key, value)| [key.as_bytes(), value]);
                let key = joined([window.as_bytes(), domain.as_bytes()].into_iter().chain(entries));
                self.checks.push(PlannedCheck { at, gate, key, cost: descriptor.hits, is_candidate: false });
                (RuleResult::NotChecked, Some(DESCRIPTOR_GATE))
            }
            Some(limit) => {
                let switch = limiter.control().current_switch(DESCRIPTOR_GATE);
                let decision = decide_without_check(DESCRIPTOR_GATE, limit, switch, false);
                (RuleResult::Decided(decision), Some(DESCRIPTOR_GATE))
            }
        };
        RuleOutcome { rule: None, result, quota: None, metric: metric.map(str::to_owned), candidate: None }
    }

    /// Notifies the observer of the decisions that need no check.
    pub(super) fn notify(&self, limiter: &Limiter, descriptors: &[Descriptor<'_>]) {
        for (outcome, descriptor) in self.outcomes.iter().zip(descriptors) {
            if let (Some(decision), true) = (outcome.decision(), descriptor.hits > 0) {
                limiter.notify(&Event::Decided(decision));
            }
        }
    }

    /// Returns the checks that can deny: of rules, and of limits that descriptors bring themselves.
    #[must_use]
    pub fn checks(&self) -> &[PlannedCheck<'r>] {
        &self.checks
    }

    /// Returns the checks of rules in shadow mode and of rules' [candidates](Rule::candidate), each independent of all
    /// others.
    #[must_use]
    pub fn shadow_checks(&self) -> &[PlannedCheck<'r>] {
        &self.shadow_checks
    }

    /// Returns whether the [`checks`](Self::checks) are independent of each other too.
    #[must_use]
    pub const fn charges_each(&self) -> bool {
        self.charges_each
    }

    /// Returns whether the files define the request's domain.
    #[must_use]
    pub const fn is_domain_known(&self) -> bool {
        self.is_domain_known
    }

    /// Returns the rule of a check; `None` for a descriptor's own limit.
    #[must_use]
    pub fn rule(&self, check: &PlannedCheck<'_>) -> Option<&Rule> {
        self.outcomes[check.at].rule()
    }

    /// Returns the outcomes that deny without a check, each with its decision.
    pub fn static_denials(&self) -> impl Iterator<Item = (&RuleOutcome, &Decision)> {
        let denied = self.outcomes.iter().filter(|outcome| !outcome.is_allowed());
        denied.filter_map(|outcome| Some((outcome, outcome.decision()?)))
    }

    /// Returns whether some of the checks that are decided together cost nothing, and other checks do:
    /// [decide](Self::decide_peeks) those first.
    #[must_use]
    pub fn has_peeks_beside_charges(&self) -> bool {
        let is_peek = |check: &PlannedCheck<'_>| check.cost() == 0;
        let mut all = self.checks.iter().chain(&self.shadow_checks);
        !self.charges_each && self.checks.iter().any(is_peek) && !all.all(is_peek)
    }

    /// Returns the checks that a denial leaves out.
    pub(super) fn uncharged(&self) -> &[PlannedCheck<'r>] {
        &self.uncharged
    }

    /// Has the outcomes of the [`uncharged`](Self::uncharged) checks show the states of their limits.
    pub(super) fn show_peeks(&mut self, peeked: Vec<Decision>) {
        for (check, peeked) in self.uncharged.iter().zip(peeked) {
            let outcome = &mut self.outcomes[check.at];
            // A denial stays, although a unit may be left again.
            if outcome.result == RuleResult::NotChecked {
                outcome.decide(check.quota(), peeked);
            }
        }
    }

    /// Combines the plan with the decisions of the [`checks`](Self::checks), if they were made, and the
    /// results of the [`shadow_checks`](Self::shadow_checks). `passes` is their joint decision if they were
    /// decided together, and true if each was decided on its own.
    pub fn decision(
        mut self,
        passes: bool,
        decisions: impl IntoIterator<Item = Decision>,
        shadow_results: impl IntoIterator<Item = Result<Decision, Error>>,
    ) -> RulesDecision {
        self.conclude(passes, decisions, shadow_results)
    }

    /// Does the same as [`decision`](Self::decision), once, and keeps the checks.
    pub(super) fn conclude(
        &mut self,
        passes: bool,
        decisions: impl IntoIterator<Item = Decision>,
        shadow_results: impl IntoIterator<Item = Result<Decision, Error>>,
    ) -> RulesDecision {
        let shadow = self.shadow_checks.iter().zip(shadow_results);
        let shadow = shadow.filter_map(|(check, result)| Some((check, result.ok()?)));
        for (check, decision) in self.checks.iter().zip(decisions).chain(shadow) {
            let outcome = &mut self.outcomes[check.at];
            match check.is_candidate {
                true => outcome.candidate = Some(decision),
                false => outcome.decide(check.quota(), decision),
            }
        }
        RulesDecision::new(passes, self.is_domain_known, std::mem::take(&mut self.outcomes))
    }
}

/// Returns the decision of a rule that denies every request or none. Only a switch of its gate can change the
/// decision, so no check is needed.
fn decide_without_check(gate: &str, limit: Limit, switch: Option<Switch>, is_shadow: bool) -> Decision {
    let (source, wait) = match (limit, switch) {
        // The retry time is one window of the rule.
        (Limit::DenyAll(window), None | Some(Switch::Shadow)) => (Source::Rule, window),
        (_, Some(Switch::Open)) => (Source::Switch, Duration::ZERO),
        _ => (Source::Switch, Decision::FIXED_RETRY),
    };
    // A gate that is switched closed denies, also if its rule is in shadow mode.
    let in_shadow = match switch {
        None => is_shadow,
        Some(switch) => switch == Switch::Shadow || (is_shadow && switch != Switch::Closed),
    };
    Decision::uncounted(gate, wait, source, in_shadow)
}

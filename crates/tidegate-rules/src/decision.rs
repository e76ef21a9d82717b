//! The decision of rules on a request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tidegate::redact::RedactedKey;
use tidegate::{Decision, Quota};

use super::metadata;
use super::rule::Rule;

/// The decision on a request, from [`RulesLimiter::check`](super::RulesLimiter::check).
#[must_use = "a decision has no effect unless the caller reads it"]
#[derive(Clone, Debug)]
pub struct RulesDecision {
    passes: bool,
    outcomes: Vec<RuleOutcome>,
    binding: Option<usize>,
    is_domain_known: bool,
    /// Whether there are rules in quota mode and all of them deny.
    denies_all_quotas: bool,
}

/// The result for one descriptor. `Debug` redacts a [`metric`](Self::metric) with values of the request.
#[derive(Clone)]
pub struct RuleOutcome {
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) result: RuleResult,
    pub(super) quota: Option<Quota>,
    pub(super) metric: Option<String>,
    pub(super) candidate: Option<Decision>,
}

/// How a descriptor was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleResult {
    /// No rule matches the descriptor, and it has no limit of its own: it passes.
    NoRule,
    /// The matching rule is unlimited: it admits everything.
    Unlimited,
    /// Another rule of the same request replaces the matching rule, which charges nothing.
    Replaced,
    /// The gate was not checked, because a rule that denies everything denied the request, or because the request
    /// costs nothing. With [`Mode::deny_above_limit`](super::Mode::deny_above_limit), its state is shown instead, unless
    /// the peek fails.
    NotChecked,
    /// The matching rule is in shadow mode, and its check failed: the limiter was shut down, or its
    /// configuration is wrong.
    Unanswered,
    /// The gate decided, or the rule itself, which denies everything. Without a rule: the descriptor's own
    /// limit.
    Decided(Decision),
}

impl RulesDecision {
    /// Returns whether the request may pass: no rule denies it, except that a rule in quota mode denies only
    /// together with all others in quota mode.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.passes && !self.outcomes.iter().any(|outcome| self.is_denial(outcome))
    }

    /// Returns whether the files define the request's domain. No rule matches a request of another domain, so
    /// it passes, and the limiter reports the warning `rules-domain-unknown`.
    #[must_use]
    pub const fn is_domain_known(&self) -> bool {
        self.is_domain_known
    }

    /// Returns the `metadata` of all rules that decided and let the request pass, merged in the order of the
    /// descriptors as Envoy's service does: maps are merged, and of two other values of one name the first is
    /// kept. A service can use it to select what serves the request.
    #[must_use]
    pub fn metadata(&self) -> Map<String, Value> {
        let mut merged = Map::new();
        let passed =
            self.outcomes.iter().filter(|outcome| outcome.decision().is_some_and(Decision::is_allowed));
        passed.filter_map(RuleOutcome::metadata).for_each(|more| metadata::merge(&mut merged, more));
        merged
    }

    /// Turns this into a denial, regardless of the outcomes.
    pub fn denied(self) -> Self {
        Self { passes: false, ..self }
    }

    /// Returns the outcome of each descriptor, in the order in which the caller passed them.
    #[must_use]
    pub fn outcomes(&self) -> &[RuleOutcome] {
        &self.outcomes
    }

    /// Returns the outcome that binds, among those with a decision. Response headers should show this one.
    ///
    /// If the request is denied, it is the one with the longest retry time. If the request is allowed, it is
    /// the one with the smallest share left. A rule in shadow mode never binds, nor does a rule in quota mode
    /// that denies while another one admits.
    #[must_use]
    pub fn binding(&self) -> Option<&RuleOutcome> {
        self.binding.map(|at| &self.outcomes[at])
    }

    /// Returns when the same request would pass if no other request came first; zero if it may pass now.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        if self.is_allowed() {
            return Duration::ZERO;
        }
        // A rule that has just admitted its last unit denies the same request, too.
        let is_shadow = |outcome: &RuleOutcome| outcome.rule().is_some_and(Rule::is_shadow);
        let counts = |outcome: &&RuleOutcome| match outcome.is_allowed() {
            true => !is_shadow(outcome),
            false => self.is_denial(outcome),
        };
        let (quotas, others): (Vec<_>, Vec<_>) =
            self.outcomes.iter().filter(counts).partition(|outcome| outcome.is_quota());
        let wait = |outcome: &RuleOutcome| outcome.decision().map(Decision::retry_after);
        // One rule in quota mode that admits again is enough.
        let until_quota = quotas.into_iter().filter_map(wait).min();
        others.into_iter().filter_map(wait).chain(until_quota).max().unwrap_or_default()
    }

    /// Returns how long the caller must wait before it proceeds. Non-zero only if a rule is a leaky bucket.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let counts = |outcome: &&RuleOutcome| !outcome.rule().is_some_and(Rule::is_shadow);
        let decisions = self.outcomes.iter().filter(counts).filter_map(RuleOutcome::decision);
        decisions.map(Decision::delay).max().unwrap_or_default()
    }

    /// Returns whether a rule denies, also one in shadow mode or in quota mode.
    pub(super) fn has_denial(&self) -> bool {
        self.outcomes.iter().any(RuleOutcome::is_denial_alone)
    }

    /// Has outcomes show the state after a charge of their fixed windows: their indices, each with its units.
    pub(super) fn show_window_charges(&mut self, charges: impl Iterator<Item = (usize, u64)>) {
        for (at, units) in charges {
            if let RuleResult::Decided(decision) = &mut self.outcomes[at].result {
                *decision = decision.clone().after_window_charge(units);
            }
        }
        *self = Self::new(self.passes, self.is_domain_known, std::mem::take(&mut self.outcomes));
    }

    /// `passes` is the joint decision of the rules that can deny.
    pub(super) fn new(passes: bool, is_domain_known: bool, outcomes: Vec<RuleOutcome>) -> Self {
        let mut quotas = outcomes.iter().filter(|outcome| outcome.is_quota()).peekable();
        let denies_all_quotas = quotas.peek().is_some() && quotas.all(|outcome| !outcome.is_allowed());
        let mut decision = Self { passes, outcomes, binding: None, is_domain_known, denies_all_quotas };
        for (at, outcome) in decision.outcomes.iter().enumerate() {
            let Some(candidate) = outcome.decision() else { continue };
            let is_shadow = outcome.rule().is_some_and(Rule::is_shadow);
            let is_spare = !outcome.is_allowed() && !decision.is_denial(outcome);
            let best = decision.binding.and_then(|best| decision.outcomes[best].decision());
            if !is_shadow && !is_spare && best.is_none_or(|best| candidate.is_tighter_than(best)) {
                decision.binding = Some(at);
            }
        }
        decision
    }

    /// Returns whether this outcome denies the request.
    fn is_denial(&self, outcome: &RuleOutcome) -> bool {
        !outcome.is_allowed() && (!outcome.is_quota() || self.denies_all_quotas)
    }
}

impl RuleOutcome {
    /// Returns the rule that matches the descriptor, if any.
    #[must_use]
    pub fn rule(&self) -> Option<&Rule> {
        self.rule.as_deref()
    }

    /// Returns whether this descriptor lets the request pass. If it is in quota mode and does not, the request
    /// can still pass: see [`RulesDecision::is_allowed`].
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        match &self.result {
            RuleResult::Decided(decision) => decision.is_allowed(),
            _ => true,
        }
    }

    /// Returns whether the gate or the rule denies, without regard to shadow mode and to other rules.
    pub(super) fn is_denial_alone(&self) -> bool {
        self.decision().is_some_and(|decision| !decision.is_allowed() || decision.is_shadow())
    }

    /// Returns the rule's `metadata`.
    #[must_use]
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.rule()?.metadata()
    }

    /// Returns whether a rule in quota mode decided.
    fn is_quota(&self) -> bool {
        self.decision().is_some() && self.rule().is_some_and(Rule::is_quota)
    }

    /// Returns how the descriptor was decided.
    #[must_use]
    pub const fn result(&self) -> &RuleResult {
        &self.result
    }

    /// Returns the decision, if there is one.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        match &self.result {
            RuleResult::Decided(decision) => Some(decision),
            _ => None,
        }
    }

    /// Returns the quota that decided: that of an operator's override of the key, else that of the rule's limit for the
    /// tier, or of the descriptor's own limit. `None` if no quota decided, as at a limit that denies every request.
    #[must_use]
    pub const fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// Sets the decision of the gate, which has this quota for the key.
    pub(super) fn decide(&mut self, quota: Option<Quota>, decision: Decision) {
        (self.quota, self.result) = (quota, RuleResult::Decided(decision));
    }

    /// Returns the decision of the rule's [candidate](Rule::candidate), if it was made. It is always allowed, and
    /// [in shadow](Decision::is_shadow) if the candidate would have denied the request.
    #[must_use]
    pub const fn candidate(&self) -> Option<&Decision> {
        self.candidate.as_ref()
    }

    /// Returns the name for metrics: the rule's path, in which values of the request replace those of the
    /// rule as `value_to_metric` and `detailed_metric` require. For a descriptor with its own limit, the name
    /// of its gate.
    #[must_use]
    pub fn metric(&self) -> Option<&str> {
        self.metric.as_deref().or_else(|| self.rule().map(Rule::path))
    }
}

impl fmt::Debug for RuleOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metric = self.metric.as_ref().map(|metric| RedactedKey::new(metric.as_bytes()));
        f.debug_struct("RuleOutcome")
            .field("rule", &self.rule.as_ref().map(|rule| rule.path()))
            .field("result", &self.result)
            .field("metric", &metric)
            .field("candidate", &self.candidate)
            .finish()
    }
}

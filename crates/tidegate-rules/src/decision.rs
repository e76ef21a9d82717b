//! The decision of rules on a request.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Decision;

use super::rule::Rule;

/// The result of [`RulesLimiter::check`](super::RulesLimiter::check).
#[must_use = "a decision has no effect unless the caller reads it"]
#[derive(Clone, Debug)]
pub struct RulesDecision {
    passes: bool,
    outcomes: Vec<RuleOutcome>,
    binding: Option<usize>,
}

/// The result for one descriptor.
#[derive(Clone, Debug)]
pub struct RuleOutcome {
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) result: RuleResult,
    pub(super) metric: Option<String>,
}

/// How a descriptor was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleResult {
    /// No rule matches the descriptor: it passes.
    NoRule,
    /// The matching rule is unlimited: it admits everything.
    Unlimited,
    /// Another rule of the same request replaces the matching rule, which charges nothing.
    Replaced,
    /// The gate was not checked, because a rule that denies everything denied the request.
    NotChecked,
    /// The matching rule is in shadow mode, and its check failed: the limiter was shut down, or its
    /// configuration is wrong.
    Unanswered,
    /// The gate decided, or the rule itself, which denies everything.
    Decided(Decision),
}

impl RulesDecision {
    /// Returns whether the request may pass: no rule denies it.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.passes && self.outcomes.iter().all(RuleOutcome::is_allowed)
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
    /// the one with the smallest share left. A rule in shadow mode never binds.
    #[must_use]
    pub fn binding(&self) -> Option<&RuleOutcome> {
        self.binding.map(|at| &self.outcomes[at])
    }

    /// Returns when the same request would pass if no other request came first; zero if it may pass now.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let denied = self.outcomes.iter().filter(|outcome| !outcome.is_allowed());
        denied.filter_map(RuleOutcome::decision).map(Decision::retry_after).max().unwrap_or_default()
    }

    /// Returns how long the caller must wait before it proceeds. Non-zero only if a rule is a leaky bucket.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let counts = |outcome: &&RuleOutcome| !outcome.rule().is_some_and(Rule::is_shadow);
        let decisions = self.outcomes.iter().filter(counts).filter_map(RuleOutcome::decision);
        decisions.map(Decision::delay).max().unwrap_or_default()
    }

    /// `passes` is the joint decision of the rules that can deny.
    pub(super) fn new(passes: bool, outcomes: Vec<RuleOutcome>) -> Self {
        let mut binding: Option<usize> = None;
        for (at, outcome) in outcomes.iter().enumerate() {
            let Some(decision) = outcome.decision() else { continue };
            let is_shadow = outcome.rule().is_some_and(Rule::is_shadow);
            let best = binding.and_then(|best| outcomes[best].decision());
            if !is_shadow && best.is_none_or(|best| decision.is_tighter_than(best)) {
                binding = Some(at);
            }
        }
        Self { passes, outcomes, binding }
    }
}

impl RuleOutcome {
    /// Returns the rule that matches the descriptor, if any.
    #[must_use]
    pub fn rule(&self) -> Option<&Rule> {
        self.rule.as_deref()
    }

    /// Returns whether this descriptor lets the request pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        match &self.result {
            RuleResult::Decided(decision) => decision.is_allowed(),
            _ => true,
        }
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

    /// Returns the name for metrics: the rule's path, in which values of the request replace those of the
    /// rule as `value_to_metric` and `detailed_metric` require.
    #[must_use]
    pub fn metric(&self) -> Option<&str> {
        self.metric.as_deref().or_else(|| self.rule().map(Rule::path))
    }
}

//! What rules say of a request.

use std::sync::Arc;
use std::time::Duration;

use super::rule::Rule;
use crate::decision::Decision;

/// The answer to [`RuledLimiter::check`](super::RuledLimiter::check).
#[must_use = "a ruling that nobody looks at limits nothing"]
#[derive(Clone, Debug)]
pub struct Ruling {
    passes: bool,
    verdicts: Vec<Verdict>,
    binding: Option<usize>,
}

/// What became of one descriptor.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) outcome: Outcome,
    pub(super) metric: Option<String>,
}

/// How a descriptor was dealt with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// No rule meets it: it passes.
    NoRule,
    /// Its rule lets everything pass.
    Unlimited,
    /// Another rule of the same request stands in for its rule, which charges
    /// nothing.
    Replaced,
    /// Its gate was not asked, since a rule that denies all denied the request.
    NotAsked,
    /// Its rule only watches, and no answer came.
    Unanswered,
    /// Its gate decided, or its rule did, which denies all.
    Decided(Decision),
}

impl Ruling {
    /// Whether the request may pass: no rule denies it.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.passes && self.verdicts.iter().all(Verdict::is_allowed)
    }

    /// For each descriptor, in the order in which they were given.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Of those with a decision, that which bound: when denied, the one to wait
    /// for longest; when allowed, the one with the smallest share left. None
    /// that only watches. The one for headers.
    #[must_use]
    pub fn binding(&self) -> Option<&Verdict> {
        self.binding.map(|at| &self.verdicts[at])
    }

    /// When the same request would pass if nobody else asked; zero if it may now.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let denied = self.verdicts.iter().filter(|verdict| !verdict.is_allowed());
        denied.filter_map(Verdict::decision).map(Decision::retry_after).max().unwrap_or_default()
    }

    /// How long to wait before going on, where a rule is a leaky bucket.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let counts = |verdict: &&Verdict| !verdict.rule().is_some_and(Rule::is_shadow);
        let decisions = self.verdicts.iter().filter(counts).filter_map(Verdict::decision);
        decisions.map(Decision::delay).max().unwrap_or_default()
    }

    /// `passes` is what those that were asked together said.
    pub(super) fn new(passes: bool, verdicts: Vec<Verdict>) -> Self {
        let mut binding: Option<usize> = None;
        for (at, verdict) in verdicts.iter().enumerate() {
            let Some(decision) = verdict.decision() else { continue };
            let is_watched = verdict.rule().is_some_and(Rule::is_shadow);
            let best = binding.and_then(|best| verdicts[best].decision());
            if !is_watched && best.is_none_or(|best| decision.is_tighter_than(best)) {
                binding = Some(at);
            }
        }
        Self { passes, verdicts, binding }
    }
}

impl Verdict {
    /// The rule that it met, if any.
    #[must_use]
    pub fn rule(&self) -> Option<&Rule> {
        self.rule.as_deref()
    }

    /// Whether this descriptor lets the request pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        match &self.outcome {
            Outcome::Decided(decision) => decision.is_allowed(),
            _ => true,
        }
    }

    /// What happened.
    #[must_use]
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The decision, where there is one.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        match &self.outcome {
            Outcome::Decided(decision) => Some(decision),
            _ => None,
        }
    }

    /// The name to count it under: the rule's path, in which values of the
    /// request stand where `value_to_metric` or `detailed_metric` ask for them.
    #[must_use]
    pub fn metric(&self) -> Option<&str> {
        self.metric.as_deref().or_else(|| self.rule().map(Rule::path))
    }
}

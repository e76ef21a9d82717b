//! The gates of rules, by all their names.

use std::borrow::Cow;

use tidegate::Quota;
#[cfg(feature = "admin")]
use tidegate::admin::ChangedGate;

use super::rule::Rule;

/// A gate that counts for a rule, or for its [candidate](Rule::candidate).
#[derive(Clone, Debug)]
pub struct RuleGate<'r> {
    rule: &'r Rule,
    name: Cow<'r, str>,
    is_candidate: bool,
}

impl<'r> RuleGate<'r> {
    pub(super) const fn of(rule: &'r Rule, name: &'r str) -> Self {
        Self { rule, name: Cow::Borrowed(name), is_candidate: false }
    }

    pub(super) fn of_candidate(rule: &'r Rule) -> Option<Self> {
        rule.candidate().map(|_| Self { rule, name: rule.candidate_gate_name().into(), is_candidate: true })
    }

    /// Returns the rule.
    #[must_use]
    pub const fn rule(&self) -> &'r Rule {
        self.rule
    }

    /// Returns the name of the gate, by which Redis stores its state. Unique.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the gate's name for people: that of its [rule](Rule::readable_name), and `api / user (candidate)` for a
    /// candidate. Need not be unique.
    #[must_use]
    pub fn readable_name(&self) -> String {
        self.rule.readable_name() + if self.is_candidate { " (candidate)" } else { "" }
    }

    /// Returns the quota of requests without a tier; `None` if the rule is unlimited or denies everything.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        if self.is_candidate { self.rule.candidate() } else { self.rule.quota() }
    }

    /// Returns whether the gate counts for the candidate of the rule.
    #[must_use]
    pub const fn is_candidate(&self) -> bool {
        self.is_candidate
    }

    /// Returns whether this is the readable name of the gate, or the path or name of its rule.
    pub(super) fn is_called(&self, name: &str) -> bool {
        let is_of_rule = self.rule.path() == name || self.rule.name() == Some(name);
        (is_of_rule && !self.is_candidate) || self.readable_name() == name
    }
}

/// The gate, for a change by an operator.
#[cfg(feature = "admin")]
impl From<RuleGate<'_>> for ChangedGate {
    fn from(gate: RuleGate<'_>) -> Self {
        let (quota, readable) = (gate.quota(), Some(gate.readable_name()));
        Self { name: gate.name.into_owned(), readable, is_in_rules: true, quota }
    }
}

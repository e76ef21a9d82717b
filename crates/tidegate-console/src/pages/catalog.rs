//! The gates that the rules define, by their names.

use std::collections::HashMap;

use tidegate::{Ban, Override, Switch};
use tidegate_rules::{Limit, Rule, RulesLimiter};

use super::display;

/// The maximum gates of a list to choose from.
const MAX_CHOICES: usize = 500;

/// The gates of the rules.
#[derive(Debug, Default)]
pub(super) struct Catalog(HashMap<String, GateFacts>);

/// A gate of a rule.
#[derive(Clone, Debug)]
pub(super) struct GateFacts {
    /// The limit in words.
    pub(super) quota: String,
    /// The units of the limit; `None` without one.
    pub(super) limit: Option<u64>,
    pub(super) denies_all: bool,
    /// Whether the gate admits checks that are over the limit: shadow mode, or the candidate of a rule.
    pub(super) is_shadow: bool,
    pub(super) origin: Origin,
    /// The path of the rule.
    pub(super) path: String,
    pub(super) ban: Option<Ban>,
}

/// By what keys of a gate are denied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GateLimit {
    /// The units of the limit; `None` if only the state of each key has it.
    pub(super) units: Option<u64>,
    /// Whether checks over the limit are denied.
    pub(super) is_enforced: bool,
}

/// A position in a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The file's name without its folder, and the line.
    pub(super) text: String,
    /// The line on the page of the rules.
    pub(super) href: String,
}

impl Origin {
    pub(super) fn new(files: &[&str], file: &str, line: usize) -> Self {
        let name = file.rsplit('/').next().unwrap_or(file);
        let index = files.iter().position(|other| *other == file).unwrap_or(0);
        Self { text: format!("{name}:{line}"), href: format!("/rules?file={index}&line={line}#L{line}") }
    }
}

impl Catalog {
    pub(super) fn new(rules: &RulesLimiter) -> Self {
        let rules = rules.rules();
        let files: Vec<&str> = rules.sources().map(|(name, _)| name).collect();
        let mut gates = HashMap::new();
        for rule in rules.iter() {
            let (file, line) = rule.origin();
            let origin = Origin::new(&files, file, line);
            if let Some(candidate) = rule.candidate() {
                let quota = format!("{}; candidate: denies nothing", candidate);
                let facts = facts(rule, quota, Some(candidate.limit()), false, origin.clone());
                gates.insert(rule.candidate_gate_name(), GateFacts { is_shadow: true, ..facts });
            }
            let limit = rule.limit(None);
            let units = if let Limit::Quota(quota) = limit { Some(quota.limit()) } else { None };
            let denies_all = matches!(limit, Limit::DenyAll(_)) && !rule.is_shadow();
            gates.insert(rule.gate_name(), facts(rule, display::rule(rule), units, denies_all, origin));
        }
        Self(gates)
    }

    pub(super) fn get(&self, gate: &str) -> Option<&GateFacts> {
        self.0.get(gate)
    }

    /// Returns the limits by which keys are denied, by gate. Gates that admit all checks by a switch have none.
    pub(super) fn limits(&self, overrides: &[Override]) -> HashMap<String, GateLimit> {
        let limit = |facts: &GateFacts| GateLimit { units: facts.limit, is_enforced: !facts.is_shadow };
        let mut limits: HashMap<String, GateLimit> =
            self.0.iter().map(|(name, facts)| (name.clone(), limit(facts))).collect();
        for entry in overrides {
            if let Override::Switch { gate, .. } = entry {
                let is_enforced = self.admitted_by(gate, overrides).is_none();
                limits.entry(gate.clone()).or_default().is_enforced = is_enforced;
            }
        }
        limits
    }

    /// Returns why a gate admits checks that are over the limit, if it does.
    pub(super) fn admitted_by(&self, gate: &str, overrides: &[Override]) -> Option<&'static str> {
        match switch_of(overrides, gate) {
            Some(Switch::Open) => Some("the gate is switched open, which admits the checks"),
            Some(Switch::Shadow) => Some("shadow mode admits the checks"),
            _ if self.get(gate)?.is_shadow => Some("shadow mode admits the checks"),
            _ => None,
        }
    }

    /// Returns the first names in the order of the alphabet, for lists to choose from.
    pub(super) fn first_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.names().map(str::to_owned).collect();
        names.sort_unstable();
        names.truncate(MAX_CHOICES);
        names
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }
}

fn facts(rule: &Rule, quota: String, limit: Option<u64>, denies_all: bool, origin: Origin) -> GateFacts {
    let (is_shadow, path, ban) = (rule.is_shadow(), rule.path().to_owned(), rule.ban());
    GateFacts { quota, limit, denies_all, is_shadow, origin, path, ban }
}

/// Returns the switch of a gate, by these overrides.
pub(super) fn switch_of(overrides: &[Override], gate: &str) -> Option<Switch> {
    overrides.iter().find_map(|entry| match entry {
        Override::Switch { gate: of, switch, .. } if of == gate => Some(*switch),
        _ => None,
    })
}

/// Returns the number of keys of a gate with a quota of their own, by these overrides.
pub(super) fn overridden_keys(overrides: &[Override], gate: &str) -> usize {
    overrides.iter().filter(|entry| matches!(entry, Override::Quota { gate: of, .. } if of == gate)).count()
}

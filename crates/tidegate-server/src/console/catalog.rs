//! The gates that the rules define, by their names.

use std::collections::HashMap;

use tidegate::{Override, Switch};
use tidegate_rules::{Limit, Rule, RulesLimiter};

use super::words;

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
    pub(super) origin: Origin,
    /// The path of the rule.
    pub(super) path: String,
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
                let quota = format!("{}; candidate: denies nothing", words::quota(&candidate));
                let facts = facts(rule, quota, Some(candidate.limit()), false, origin.clone());
                gates.insert(rule.candidate_gate_name(), facts);
            }
            let limit = rule.limit(None);
            let units = if let Limit::Quota(quota) = limit { Some(quota.limit()) } else { None };
            let denies_all = matches!(limit, Limit::DenyAll(_)) && !rule.is_shadow();
            gates.insert(rule.gate_name(), facts(rule, words::rule(rule), units, denies_all, origin));
        }
        Self(gates)
    }

    pub(super) fn get(&self, gate: &str) -> Option<&GateFacts> {
        self.0.get(gate)
    }

    /// Returns the gates with a limit, and the units of the limit.
    pub(super) fn limits(&self) -> impl Iterator<Item = (String, u64)> {
        self.0.iter().filter_map(|(name, facts)| Some((name.clone(), facts.limit?)))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }
}

fn facts(rule: &Rule, quota: String, limit: Option<u64>, denies_all: bool, origin: Origin) -> GateFacts {
    GateFacts { quota, limit, denies_all, origin, path: rule.path().to_owned() }
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

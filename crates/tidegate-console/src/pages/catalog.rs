//! The gates that the rules define, by their names.

use std::any::Any;
use std::collections::HashMap;

use askama::Values;
use tidegate::{Ban, Override, Switch};
use tidegate_rules::{Limit, RuleGate, RulesLimiter};

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
    /// The units of the limit of each key; `None` without one, and if it depends on the tier of a request.
    pub(super) limit: Option<u64>,
    pub(super) denies_all: bool,
    /// Without a switch.
    pub(super) denied: Denied,
    pub(super) origin: Origin,
    /// The name that is shown.
    pub(super) readable: String,
    /// The path of the rule.
    pub(super) path: String,
    pub(super) ban: Option<Ban>,
}

/// Which checks of a gate are denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Denied {
    /// Those over the limit.
    #[default]
    OverLimit,
    All,
    /// None, or not by this gate alone, for this reason.
    Nothing(&'static str),
}

const SHADOW: Denied = Denied::Nothing("shadow mode admits the checks");

/// By what keys of a gate are denied.
#[derive(Clone, Debug, Default)]
pub(super) struct GateLimit {
    /// The units of the limit; `None` if only the state of each key has it.
    pub(super) units: Option<u64>,
    /// The units of the keys with an override, by their form in Redis.
    pub(super) overridden: HashMap<String, u64>,
    pub(super) denied: Denied,
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
        Self(rules.gates().map(|gate| (gate.name().to_owned(), GateFacts::new(&gate, &files))).collect())
    }

    /// Returns the name that is shown for a gate: that of its rule, if it has one.
    pub(super) fn shown<'n>(&'n self, gate: &'n str) -> &'n str {
        self.get(gate).map_or(gate, |facts| &facts.readable)
    }

    pub(super) fn get(&self, gate: &str) -> Option<&GateFacts> {
        self.0.get(gate)
    }

    /// Returns the limits by which keys are denied, by gate.
    pub(super) fn limits(&self, overrides: &[Override]) -> HashMap<String, GateLimit> {
        let limit = |facts: &GateFacts| GateLimit {
            units: facts.limit,
            denied: facts.denied,
            ..GateLimit::default()
        };
        let mut limits: HashMap<String, GateLimit> =
            self.0.iter().map(|(name, facts)| (name.clone(), limit(facts))).collect();
        for entry in overrides {
            let of_gate = limits.entry(entry.gate().to_owned()).or_default();
            match entry {
                Override::Switch { gate, switch, .. } => of_gate.denied = self.denied(gate, Some(*switch)),
                Override::Quota { key, quota, .. } => {
                    of_gate.overridden.insert(key.clone(), quota.limit());
                }
                _ => {}
            }
        }
        limits
    }

    /// Returns which checks of a gate with this switch are denied.
    pub(super) fn denied(&self, gate: &str, switch: Option<Switch>) -> Denied {
        match switch {
            Some(Switch::Closed) => Denied::All,
            Some(Switch::Open) => Denied::Nothing("the gate is switched open, which admits the checks"),
            Some(Switch::Shadow) => SHADOW,
            _ => self.get(gate).map_or_else(Denied::default, |facts| facts.denied),
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

impl GateFacts {
    fn new(gate: &RuleGate<'_>, files: &[&str]) -> Self {
        let (rule, (file, line)) = (gate.rule(), gate.rule().origin());
        let is_candidate = gate.is_candidate();
        let quota = match gate.quota() {
            Some(quota) if is_candidate => format!("{quota}; candidate: denies nothing"),
            _ => display::rule(rule),
        };
        let denied = match (is_candidate || rule.is_shadow(), rule.is_quota()) {
            (true, _) => SHADOW,
            (_, true) => Denied::Nothing("in quota mode, another quota can admit the request"),
            _ => Denied::OverLimit,
        };
        // Redis does not store the tier of a key.
        let limited = gate.quota().filter(|_| is_candidate || !rule.has_tiers());
        Self {
            quota,
            limit: limited.map(|quota| quota.limit()),
            denies_all: matches!(rule.limit(None), Limit::DenyAll(_)) && !is_candidate && !rule.is_shadow(),
            denied,
            origin: Origin::new(files, file, line),
            readable: gate.readable_name(),
            path: rule.path().to_owned(),
            ban: rule.ban(),
        }
    }
}

/// For the filter `readable` of all templates.
impl Values for Catalog {
    fn get_value<'v>(&'v self, _: &str) -> Option<&'v dyn Any> {
        Some(self)
    }
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

//! Maps a request to the checks of its gates.

use http::request::Parts;
use tidegate::{Check, Decision};

use super::charge::Charge;
use super::check_group::CheckGroup;
use super::gate_rule::GateRule;
use super::missing_key::{MissingKey, NO_KEY};
use super::policy::Policy;
use super::settings::LayerSettings;

/// The checks of one request.
#[derive(Default)]
pub(super) struct RequestChecks {
    /// Checks that can deny; `policies` and `charges` hold one entry for each.
    pub(super) checks: Vec<Check>,
    pub(super) policies: Vec<Policy>,
    pub(super) charges: Vec<Charge>,
    /// Whether each check is decided independently instead of all or nothing.
    pub(super) charges_each: bool,
    /// Denials that need no check, such as those of rules with a limit of 0.
    pub(super) static_denials: Vec<(Decision, Policy)>,
    /// Checks in shadow mode: they charge and never deny.
    pub(super) shadow_checks: Vec<Check>,
}

impl RequestChecks {
    /// Adds the checks of the layer's own rules. Returns `None` if the request lacks a required key.
    pub(super) async fn add_rules(&mut self, settings: &LayerSettings, parts: &Parts) -> Option<()> {
        let chosen = match &settings.chooser {
            Some(choose) => choose(parts).await,
            None => Vec::new(),
        };
        for rule in chosen.iter().chain(&settings.rules) {
            self.add(rule, settings, parts)?;
        }
        Some(())
    }

    fn add(&mut self, rule: &GateRule, settings: &LayerSettings, parts: &Parts) -> Option<()> {
        let cost = rule.cost.as_ref().or(settings.cost.as_ref()).map_or(1, |cost| cost(parts));
        if cost == 0 {
            return Some(());
        }
        let key = rule.key.of(parts);
        let colocate_with = rule.colocate_with.as_ref().map(|key| key.of(parts));
        let is_missing = key.is_none() || matches!(colocate_with, Some(None));
        let check = match (key, settings.missing_key) {
            (_, MissingKey::Skip) if is_missing => return Some(()),
            (_, MissingKey::Reject) if is_missing => return None,
            (key, _) => rule.gate.key(key.as_deref().unwrap_or(NO_KEY)),
        };
        let check = match colocate_with {
            Some(owner) => check.colocate_with(owner.as_deref().unwrap_or(NO_KEY)),
            None => check,
        };
        self.checks.push(check.cost(cost));
        self.policies.push(Policy::new(&rule.gate, rule.name.clone()));
        self.charges.push(rule.charge.as_ref().unwrap_or(&settings.charge).clone());
        Some(())
    }

    /// Returns the checks that can deny. Returns `None` if there are none, or if the request is denied
    /// without them.
    pub(super) fn group(&mut self) -> Option<CheckGroup> {
        if !self.static_denials.is_empty() && !self.charges_each {
            self.checks.clear();
            self.policies.clear();
        }
        // Resolves overrides now: a later refund must reach the gate that was charged.
        let checks: Vec<Check> = self.checks.drain(..).map(Check::effective).collect();
        for (policy, check) in self.policies.iter_mut().zip(&checks) {
            policy.is_shadow = check.is_shadow();
        }
        self.shadow_checks = self.shadow_checks.drain(..).map(Check::effective).collect();
        (!checks.is_empty()).then(|| match self.charges_each {
            true => CheckGroup::each(checks),
            false => CheckGroup::all(checks),
        })
    }
}

//! Maps a request to the checks of its gates.

use std::borrow::Cow;

use http::request::Parts;
use smallvec::{SmallVec, smallvec};
use tidegate::{Check, Decision};

use super::charge::Charge;
use super::check_group::{CheckGroup, Checks};
use super::gate_rule::GateRule;
use super::in_flight::is_in_flight;
use super::missing_key::{MissingKey, NO_KEY};
use super::rejection::Rejection;
use super::reserved_slots::ReservedSlots;
use super::settings::LayerSettings;
use crate::policy::{Policies, Policy};

/// The checks of one request.
#[derive(Default)]
pub(super) struct RequestChecks {
    /// Checks that can deny; `policies` and `charges` hold one entry for each.
    pub(super) checks: Checks,
    pub(super) policies: Policies,
    pub(super) charges: SmallVec<[Charge; 2]>,
    /// Whether each check is decided independently instead of all or nothing.
    pub(super) charges_each: bool,
    /// Denials that need no check, such as those of rules with a limit of 0.
    pub(super) static_denials: Vec<(Decision, Policy)>,
    /// Checks in shadow mode: they charge and never deny.
    pub(super) shadow_checks: Vec<Check>,
    /// The indices of the checks that may not use the slots reserved for critical requests.
    restricted: Vec<(usize, ReservedSlots)>,
}

impl RequestChecks {
    /// Returns what remains of a check that has been decided.
    pub(super) fn of_decided(policy: Policy, charge: Charge) -> Self {
        Self { policies: smallvec![policy], charges: smallvec![charge], ..Self::default() }
    }

    /// Adds the checks of the layer's own rules.
    ///
    /// # Errors
    ///
    /// The rejection of a request that lacks a required key.
    pub(super) async fn add_rules(
        &mut self,
        settings: &LayerSettings,
        parts: &Parts,
    ) -> Result<(), Box<Rejection>> {
        let chosen = match &settings.chooser {
            Some(choose) => choose(parts).await,
            None => Vec::new(),
        };
        self.checks.reserve_exact(chosen.len() + settings.rules.len());
        for rule in chosen.iter().chain(&settings.rules) {
            self.add(rule, settings, parts)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        rule: &GateRule,
        settings: &LayerSettings,
        parts: &Parts,
    ) -> Result<(), Box<Rejection>> {
        let Some((check, policy)) = limit_of(rule, settings, parts)? else { return Ok(()) };
        if let Some(reserved) = rule.reserved.as_ref().filter(|reserved| !reserved.is_critical(parts)) {
            self.restricted.push((self.checks.len(), reserved.clone()));
        }
        self.checks.push(check);
        self.policies.push(policy);
        self.charges.push(rule.charge.as_ref().unwrap_or(&settings.charge).clone());
        Ok(())
    }

    /// Returns the checks that can deny. Returns `None` if there are none, or if the request is denied
    /// without them.
    pub(super) async fn group(&mut self) -> Option<CheckGroup> {
        if !self.static_denials.is_empty() && !self.charges_each {
            self.checks.clear();
            self.policies.clear();
            self.restricted.clear();
        }
        let mut checks = std::mem::take(&mut self.checks);
        let count = checks.len();
        checks.extend(self.shadow_checks.drain(..));
        // Resolves overrides now: a later refund must reach the gate that was charged.
        Check::follow(&mut checks).await;
        for (at, reserved) in self.restricted.drain(..) {
            checks[at] = reserved.restrict(checks[at].clone());
        }
        self.shadow_checks.extend(checks.drain(count..));
        for (policy, check) in self.policies.iter_mut().zip(&checks) {
            policy.follow(check);
        }
        (!checks.is_empty()).then(|| match self.charges_each {
            true => CheckGroup::each(checks),
            false => CheckGroup::all(checks),
        })
    }
}

/// Returns the check of a rule and its policy. `None` if the rule does not apply to the request.
///
/// # Errors
///
/// The rejection of a request that lacks a required key.
pub(super) fn limit_of(
    rule: &GateRule,
    settings: &LayerSettings,
    parts: &Parts,
) -> Result<Option<(Check, Policy)>, Box<Rejection>> {
    // The layer's cost counts units of rates, such as tokens or bytes.
    let layer_cost = settings.cost.as_ref().filter(|_| !is_in_flight(&rule.gate));
    let cost = rule.cost.as_ref().or(layer_cost).map_or(1, |cost| cost(parts));
    if cost == 0 {
        return Ok(None);
    }
    if let Some(mistake) = rule.key.trust_mistake(parts) {
        settings.warnings.trust(&rule.gate.limiter(), mistake);
    }
    let key = rule.key.find(parts);
    let owner = rule.colocate_with.as_ref().map(|key| key.find(parts)).transpose();
    if let Some(absent) = key.as_ref().err().or(owner.as_ref().err()).copied() {
        let missing_key = settings.missing_key;
        settings.warnings.missing_part(&rule.gate.limiter(), parts, absent, missing_key);
        match missing_key {
            MissingKey::Reject => {
                let limit = rule.name.as_deref().or(rule.gate.name());
                return Err(Box::new(Rejection::absent(absent, limit)));
            }
            MissingKey::Skip => return Ok(None),
            MissingKey::Share => {}
        }
    }
    let no_key = |_| Cow::Borrowed(NO_KEY);
    let key = key.unwrap_or_else(no_key);
    let owner = owner.unwrap_or_else(|absent| Some(no_key(absent)));
    let partition_key = rule.partition_keys.as_ref().map(|keys| keys.of(&key, owner.as_deref()));
    let check = rule.gate.key(key);
    let check = match owner {
        Some(owner) => check.colocate_with(owner),
        None => check,
    };
    let policy = Policy::new(&rule.gate, rule.name.clone());
    Ok(Some((check.cost(cost), Policy { unit: rule.unit.clone(), partition_key, ..policy })))
}

//! The gates of the rules.

use std::collections::HashMap;
use std::iter;

use tidegate::{Ban, Gate, Lease, Limiter, OnFailure, Quota};

use crate::limit::Limit;
use crate::load::Rules;
use crate::regions;
use crate::rule::Rule;

/// The gates of a rule.
#[derive(Debug)]
pub(super) struct RuleGates {
    /// For its limit, then for each of its tiers. `None` for a limit that counts nothing.
    limits: Vec<Option<Gate>>,
    candidate: Option<Gate>,
}

/// All settings of a rule that its gate holds, except the name.
#[derive(PartialEq)]
struct GateSettings {
    quota: Quota,
    is_shadow: bool,
    on_failure: Option<OnFailure>,
    lease: Option<Lease>,
    ban: Option<Ban>,
    charges_used: bool,
    is_replicated: bool,
}

impl RuleGates {
    /// Returns the gates of all rules. Takes over each previous gate with the same name, tier and settings: a
    /// clone shares its leases.
    pub(super) fn of_rules(
        rules: &Rules,
        limiter: &Limiter,
        previous: Option<(&Rules, &[Self])>,
    ) -> Vec<Self> {
        let previous = previous.into_iter().flat_map(|(rules, gates)| rules.with_gate_names().zip(gates));
        let previous: HashMap<_, _> = previous
            .flat_map(|((rule, name), gates)| {
                let gates = GateSettings::of_rule(rule).zip(&gates.limits);
                gates.map(move |((tier, settings), gate)| ((name, tier), (settings, gate)))
            })
            .collect();
        let gates = rules.with_gate_names().map(|(rule, name)| {
            let gates =
                GateSettings::of_rule(rule).map(|(tier, settings)| match previous.get(&(name, tier)) {
                    Some((previous, gate)) if *previous == settings => (*gate).clone(),
                    _ => settings.map(|settings| settings.gate(limiter, name)),
                });
            let limits = gates.collect();
            let candidate = GateSettings::of_candidate(rule);
            let candidate = candidate.map(|settings| settings.gate(limiter, &rule.candidate_gate_name()));
            Self { limits, candidate }
        });
        gates.collect()
    }

    /// Returns the gate at an index of [`Rule::limit`].
    pub(super) fn get(&self, index: usize) -> Option<&Gate> {
        self.limits[index].as_ref()
    }

    /// Returns the gate of the rule's candidate.
    pub(super) const fn candidate(&self) -> Option<&Gate> {
        self.candidate.as_ref()
    }
}

impl GateSettings {
    /// Returns the settings for the limit of a rule, then for each of its tiers, by the tier's name.
    fn of_rule(rule: &Rule) -> impl Iterator<Item = (Option<&str>, Option<Self>)> {
        let tiers = rule.settings.tiers.iter().map(|(tier, limit)| (Some(&**tier), *limit));
        iter::once((None, rule.settings.limit)).chain(tiers).map(move |(tier, limit)| {
            let Limit::Quota(quota) = limit else { return (tier, None) };
            let (on_failure, lease) = (rule.settings.on_failure, rule.settings.lease.as_deref().copied());
            let (is_shadow, charges_used, is_replicated) =
                (rule.is_shadow(), rule.charges_used(), rule.is_replicated());
            (
                tier,
                Some(Self {
                    quota,
                    is_shadow,
                    on_failure,
                    lease,
                    ban: rule.ban(),
                    charges_used,
                    is_replicated,
                }),
            )
        })
    }

    /// Returns the settings for the candidate of a rule. It has no lease, so no previous gate is taken over; and no
    /// ban, since it denies nothing.
    fn of_candidate(rule: &Rule) -> Option<Self> {
        let (quota, on_failure) = (rule.candidate()?, rule.settings.on_failure);
        let (charges_used, is_replicated) = (rule.charges_used(), rule.is_replicated());
        Some(Self { quota, is_shadow: true, on_failure, lease: None, ban: None, charges_used, is_replicated })
    }

    /// Creates the gate from these settings alone, so that equal settings make equal gates.
    fn gate(self, limiter: &Limiter, name: &str) -> Gate {
        // Tiers have one name and different quotas; so has a rule before and after a reload.
        let gate = limiter.try_gate(name, self.quota).expect("a rule's gate has a valid name");
        let gate = if self.is_replicated { regions::replicated(gate) } else { gate };
        let mut gate = gate.shadow(self.is_shadow).charge_used(self.charges_used);
        if let Some(on_failure) = self.on_failure {
            gate = gate.on_failure(on_failure);
        }
        if let Some(ban) = self.ban {
            gate = gate.ban(ban);
        }
        match self.lease {
            Some(lease) => gate.leased(lease),
            None => gate,
        }
    }
}

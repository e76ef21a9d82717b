//! Maps a request to the checks of its gates.

use std::time::Duration;

use futures_util::future::join_all;
use http::request::Parts;

use super::charge::Charge;
use super::policy::Policy;
use super::rule::Rule;
use super::settings::{LayerSettings, MissingKey};
use crate::check::Check;
use crate::clock::Stopwatch;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;

/// The key of requests without a key. No header, path or address can equal it.
pub(super) const NO_KEY: &[u8] = b"\0no key";

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

    fn add(&mut self, rule: &Rule, settings: &LayerSettings, parts: &Parts) -> Option<()> {
        let cost = rule.cost.as_ref().or(settings.cost.as_ref()).map_or(1, |cost| cost(parts));
        if cost == 0 {
            return Some(());
        }
        let key = rule.key.of(parts);
        let colocate_with = rule.colocate_with.as_ref().map(|key| key.of(parts));
        let is_missing = key.is_none() || matches!(colocate_with, Some(None));
        let check = match (key, settings.missing_key) {
            (_, MissingKey::Skip) if is_missing => return Some(()),
            (_, MissingKey::Refuse) if is_missing => return None,
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
        let checks: Vec<Check> = self.checks.drain(..).map(Check::effective_gate).collect();
        self.shadow_checks = self.shadow_checks.drain(..).map(Check::effective_gate).collect();
        (!checks.is_empty()).then(|| match self.charges_each {
            true => CheckGroup::each(checks),
            false => CheckGroup::all(checks),
        })
    }
}

/// Checks of one request that are decided together: all or nothing, or each independently.
pub(super) struct CheckGroup {
    pub(super) checks: Vec<Check>,
    /// For checks that are decided independently: the admitted ones, which a retry does not repeat.
    admitted: Option<Vec<Option<Admitted>>>,
}

/// An admission by one gate, while other gates still deny the request.
struct Admitted {
    decision: Decision,
    /// Measures the time since the decision.
    age: Stopwatch,
}

impl Admitted {
    /// Returns the decision with its times counted from now.
    fn decision(&self) -> Decision {
        self.decision.clone().aged((self.age)())
    }
}

impl CheckGroup {
    pub(super) fn all(checks: Vec<Check>) -> Self {
        Self { checks, admitted: None }
    }

    pub(super) fn each(checks: Vec<Check>) -> Self {
        let admitted = checks.iter().map(|_| None).collect();
        Self { checks, admitted: Some(admitted) }
    }

    pub(super) async fn decide(&mut self) -> Result<AllDecision, Error> {
        match (&*self.checks, &mut self.admitted) {
            // A single check can also use leases, the deny cache and coalescing.
            ([check], _) => Ok(AllDecision::of_each(vec![check.gate.decide(&check.as_ref()).await?])),
            ([first, ..], None) => first.gate.core.check_all(self.checks.to_vec()).await,
            ([first, ..], Some(admitted)) => {
                let core = &first.gate.core;
                let undecided: Vec<usize> =
                    (0..admitted.len()).filter(|at| admitted[*at].is_none()).collect();
                let checks: Vec<_> = undecided.iter().map(|&at| self.checks[at].as_ref()).collect();
                let decided = core.check_each(&checks).await;
                let mut decisions: Vec<_> =
                    admitted.iter().map(|admitted| admitted.as_ref().map(Admitted::decision)).collect();
                for (at, decision) in undecided.into_iter().zip(decided) {
                    let decision = decision?;
                    if decision.is_allowed() {
                        admitted[at] = Some(Admitted { decision: decision.clone(), age: core.stopwatch() });
                    }
                    decisions[at] = Some(decision);
                }
                Ok(AllDecision::of_each(decisions.into_iter().flatten().collect()))
            }
            ([], _) => Err(Error::config("the request has no gate to check")),
        }
    }

    /// Returns the decision that [`decide`](Self::decide) would make, without charging.
    pub(super) async fn peek(&self) -> Result<AllDecision, Error> {
        let core = &self.checks[0].gate.core;
        let Some(admitted) = &self.admitted else { return core.peek_all(self.checks.clone()).await };
        let peeks = self.checks.iter().zip(admitted).map(|(check, admitted)| async move {
            match admitted {
                Some(admitted) => Ok(admitted.decision()),
                None => Ok(core.peek_all(vec![check.clone()]).await?.binding().clone()),
            }
        });
        let decisions = join_all(peeks).await.into_iter().collect::<Result<_, Error>>()?;
        Ok(AllDecision::of_each(decisions))
    }

    /// Returns how long this denied request has to wait. Gates that have admitted it do not prolong the wait,
    /// nor do gates in shadow mode.
    pub(super) fn wait(&self, denied: &AllDecision) -> Wait {
        let mut wait = Wait::default();
        for (check, decision) in self.checks.iter().zip(denied.decisions()) {
            let is_settled = match self.admitted {
                None => check.gate.is_shadow,
                Some(_) => decision.is_allowed(),
            };
            if is_settled {
                continue;
            }
            wait.until_retry = wait.until_retry.max(decision.retry_after());
            // At a leaky bucket, the request waits first to enter the bucket's queue and then for its turn.
            // Both together take at most the time in which the queue drains.
            if check.gate.info().is_ok_and(|info| info.quota.has_queue()) {
                wait.until_entry = wait.until_entry.max(decision.reset_after());
            }
        }
        wait.until_entry = wait.until_entry.max(wait.until_retry);
        wait
    }
}

/// The wait of a denied request, if no other request arrives.
#[derive(Default)]
pub(super) struct Wait {
    /// Until a retry is admitted.
    pub(super) until_retry: Duration,
    /// Until the request enters the service, at the latest.
    pub(super) until_entry: Duration,
}

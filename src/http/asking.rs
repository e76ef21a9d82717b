//! From a request to the checks of its gates.

use std::time::Duration;

use futures_util::future::join_all;
use http::request::Parts;

use super::charge::Charge;
use super::policy::Policy;
use super::rule::Rule;
use super::settings::{MissingKey, Settings};
use crate::ask::Ask;
use crate::clock::Stopwatch;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;

/// The key of requests without one. Equal to no header, path or address.
pub(super) const NO_KEY: &[u8] = b"\0no key";

/// The checks of one request.
#[derive(Default)]
pub(super) struct Asking {
    /// Checks that can deny; `policies` and `charges` hold one entry for each.
    pub(super) asks: Vec<Ask>,
    pub(super) policies: Vec<Policy>,
    pub(super) charges: Vec<Charge>,
    /// Whether each check is decided independently instead of all or nothing.
    pub(super) charges_each: bool,
    /// Denials that need no check, such as those of rules with a limit of 0.
    pub(super) refused: Vec<(Decision, Policy)>,
    /// Checks in shadow mode: they charge and never deny.
    pub(super) watched: Vec<Ask>,
}

impl Asking {
    /// Adds the checks of the layer's own rules. Returns `None` if the request lacks a required key.
    pub(super) async fn add_rules(&mut self, settings: &Settings, parts: &Parts) -> Option<()> {
        let chosen = match &settings.chooser {
            Some(choose) => choose(parts).await,
            None => Vec::new(),
        };
        for rule in chosen.iter().chain(&settings.rules) {
            self.add(rule, settings, parts)?;
        }
        Some(())
    }

    fn add(&mut self, rule: &Rule, settings: &Settings, parts: &Parts) -> Option<()> {
        let cost = rule.cost.as_ref().or(settings.cost.as_ref()).map_or(1, |cost| cost(parts));
        if cost == 0 {
            return Some(());
        }
        let key = rule.key.of(parts);
        let beside = rule.beside.as_ref().map(|beside| beside.of(parts));
        let is_missing = key.is_none() || matches!(beside, Some(None));
        let ask = match (key, settings.missing_key) {
            (_, MissingKey::Skip) if is_missing => return Some(()),
            (_, MissingKey::Refuse) if is_missing => return None,
            (key, _) => rule.gate.ask(key.as_deref().unwrap_or(NO_KEY)),
        };
        let ask = match beside {
            Some(beside) => ask.beside(beside.as_deref().unwrap_or(NO_KEY)),
            None => ask,
        };
        self.asks.push(ask.cost(cost));
        self.policies.push(Policy::new(&rule.gate, rule.name.clone()));
        self.charges.push(rule.charge.as_ref().unwrap_or(&settings.charge).clone());
        Some(())
    }

    /// Returns the checks that can deny. Returns `None` if there are none, or if the request is denied without them.
    pub(super) fn question(&mut self) -> Option<Question> {
        if !self.refused.is_empty() && !self.charges_each {
            self.asks.clear();
            self.policies.clear();
        }
        // The gates in effect now: a later refund must reach the gate that was charged.
        let asks: Vec<Ask> = self.asks.drain(..).map(Ask::in_force).collect();
        self.watched = self.watched.drain(..).map(Ask::in_force).collect();
        (!asks.is_empty()).then(|| match self.charges_each {
            true => Question::each(asks),
            false => Question::all(asks),
        })
    }
}

/// Checks of one request that are decided together: all or nothing, or each independently.
pub(super) struct Question {
    pub(super) asks: Vec<Ask>,
    /// For checks that are decided independently: the admitted ones, which a retry does not repeat.
    admitted: Option<Vec<Option<Admitted>>>,
}

/// An admission that waits for those of other gates.
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

impl Question {
    pub(super) fn all(asks: Vec<Ask>) -> Self {
        Self { asks, admitted: None }
    }

    pub(super) fn each(asks: Vec<Ask>) -> Self {
        let admitted = asks.iter().map(|_| None).collect();
        Self { asks, admitted: Some(admitted) }
    }

    pub(super) async fn decide(&mut self) -> Result<AllDecision, Error> {
        match (&*self.asks, &mut self.admitted) {
            // A single check also uses leases, the deny cache and merging.
            ([ask], _) => Ok(AllDecision::of_each(vec![ask.gate.decide(&ask.as_ref()).await?])),
            ([first, ..], None) => first.gate.core.check_all(self.asks.to_vec()).await,
            ([first, ..], Some(admitted)) => {
                let core = &first.gate.core;
                let open: Vec<usize> = (0..admitted.len()).filter(|at| admitted[*at].is_none()).collect();
                let asks: Vec<_> = open.iter().map(|&at| self.asks[at].as_ref()).collect();
                let decided = core.check_each(&asks).await;
                let mut decisions: Vec<_> =
                    admitted.iter().map(|admitted| admitted.as_ref().map(Admitted::decision)).collect();
                for (at, decision) in open.into_iter().zip(decided) {
                    let decision = decision?;
                    if decision.is_allowed() {
                        admitted[at] = Some(Admitted { decision: decision.clone(), age: core.stopwatch() });
                    }
                    decisions[at] = Some(decision);
                }
                Ok(AllDecision::of_each(decisions.into_iter().flatten().collect()))
            }
            ([], _) => Err(Error::config("nothing is asked")),
        }
    }

    /// Returns the decision that [`decide`](Self::decide) would make, without charging.
    pub(super) async fn peek(&self) -> Result<AllDecision, Error> {
        let core = &self.asks[0].gate.core;
        let Some(admitted) = &self.admitted else { return core.peek_all(self.asks.clone()).await };
        let peeks = self.asks.iter().zip(admitted).map(|(ask, admitted)| async move {
            match admitted {
                Some(admitted) => Ok(admitted.decision()),
                None => Ok(core.peek_all(vec![ask.clone()]).await?.binding().clone()),
            }
        });
        let decisions = join_all(peeks).await.into_iter().collect::<Result<_, Error>>()?;
        Ok(AllDecision::of_each(decisions))
    }

    /// Returns how long this denied request has to wait. Gates that have admitted it do not prolong the wait, nor do
    /// gates in shadow mode.
    pub(super) fn wait(&self, denied: &AllDecision) -> Wait {
        let mut wait = Wait::default();
        for (ask, decision) in self.asks.iter().zip(denied.decisions()) {
            let is_settled = match self.admitted {
                None => ask.gate.is_shadow,
                Some(_) => decision.is_allowed(),
            };
            if is_settled {
                continue;
            }
            wait.until_retry = wait.until_retry.max(decision.retry_after());
            // A leaky bucket makes the request wait for a place in its queue and then for its turn: together at most
            // the time in which the queue drains.
            if ask.gate.info().is_ok_and(|info| info.quota.has_queue()) {
                wait.until_entry = wait.until_entry.max(decision.reset_after());
            }
        }
        wait.until_entry = wait.until_entry.max(wait.until_retry);
        wait
    }
}

/// How long a denied request has to wait if no other request comes.
#[derive(Default)]
pub(super) struct Wait {
    /// Until a retry is admitted.
    pub(super) until_retry: Duration,
    /// Until the request enters the service, at the latest.
    pub(super) until_entry: Duration,
}

//! From a request to what is asked of the gates.

use futures_util::future::join_all;
use http::request::Parts;

use super::charge::Charge;
use super::policy::Policy;
use super::rule::Rule;
use super::settings::{MissingKey, Settings};
use crate::ask::Ask;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;

/// No header, path or address is this.
pub(super) const NO_KEY: &[u8] = b"\0no key";

/// What one request has to ask.
#[derive(Default)]
pub(super) struct Asking {
    /// With the policy and the charge of each.
    pub(super) asks: Vec<Ask>,
    pub(super) policies: Vec<Policy>,
    pub(super) charges: Vec<Charge>,
    /// Each ask by itself, and not all or nothing.
    pub(super) charges_each: bool,
    /// What is denied without being asked.
    pub(super) refused: Vec<(Decision, Policy)>,
    /// What decides and counts, and never denies.
    pub(super) watched: Vec<Ask>,
}

impl Asking {
    /// Adds what the layer's own rules ask. `None` if a key is missing that must not be.
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

    /// What is to be asked of those that can deny. Nothing, where the request is refused anyway.
    pub(super) fn question(&mut self) -> Option<Question> {
        if !self.refused.is_empty() && !self.charges_each {
            self.asks.clear();
            self.policies.clear();
        }
        // As they stand now: what is given back later goes to where it was taken.
        let asks: Vec<Ask> = self.asks.drain(..).map(Ask::in_force).collect();
        self.watched = self.watched.drain(..).map(Ask::in_force).collect();
        let admitted = self.charges_each.then(|| vec![None; asks.len()]);
        (!asks.is_empty()).then_some(Question { asks, admitted })
    }
}

/// Asks that are decided together: all or nothing, or each by itself.
pub(super) struct Question {
    pub(super) asks: Vec<Ask>,
    /// Of asks that are charged each: what was admitted is not asked again.
    admitted: Option<Vec<Option<Decision>>>,
}

impl Question {
    #[cfg(test)]
    pub(super) fn all(asks: Vec<Ask>) -> Self {
        Self { asks, admitted: None }
    }

    pub(super) async fn decide(&mut self) -> Result<AllDecision, Error> {
        match (&*self.asks, &mut self.admitted) {
            // One alone is answered by whatever knows: a lease, the deny cache, a batch with others.
            ([ask], _) => Ok(AllDecision::of_each(vec![ask.gate.decide(&ask.as_ref()).await?])),
            ([first, ..], None) => first.gate.core.check_all(self.asks.to_vec()).await,
            ([first, ..], Some(admitted)) => {
                let open: Vec<usize> = (0..admitted.len()).filter(|at| admitted[*at].is_none()).collect();
                let asks: Vec<_> = open.iter().map(|&at| self.asks[at].as_ref()).collect();
                let decided = first.gate.core.check_each(&asks).await;
                let mut decisions = admitted.clone();
                for (at, decision) in open.into_iter().zip(decided) {
                    let decision = decision?;
                    admitted[at] = decision.is_allowed().then(|| decision.clone());
                    decisions[at] = Some(decision);
                }
                Ok(AllDecision::of_each(decisions.into_iter().flatten().collect()))
            }
            ([], _) => Err(Error::config("nothing is asked")),
        }
    }

    /// What [`decide`](Self::decide) would say.
    pub(super) async fn peek(&self) -> Result<AllDecision, Error> {
        let core = &self.asks[0].gate.core;
        let Some(admitted) = &self.admitted else { return core.peek_all(self.asks.clone()).await };
        let peeks = self.asks.iter().zip(admitted).map(|(ask, admitted)| async move {
            match admitted {
                Some(decision) => Ok(decision.clone()),
                None => Ok(core.peek_all(vec![ask.clone()]).await?.binding().clone()),
            }
        });
        let decisions = join_all(peeks).await.into_iter().collect::<Result<_, Error>>()?;
        Ok(AllDecision::of_each(decisions))
    }
}

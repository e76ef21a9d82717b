//! From a request to what is asked of the gates.

use http::request::Parts;

use super::charge::Charge;
use super::policy::Policy;
use super::rule::Rule;
use super::settings::{MissingKey, Settings};
use crate::ask::Ask;
use crate::decision::AllDecision;
use crate::error::Error;

/// No header, path or address is this.
const NO_KEY: &[u8] = b"\0no key";

/// One entry in each for each rule that applies.
#[derive(Default)]
pub(super) struct Asking {
    pub(super) asks: Vec<Ask>,
    pub(super) policies: Vec<Policy>,
    pub(super) charges: Vec<Charge>,
}

impl Asking {
    /// `None` if a key is missing that must not be.
    pub(super) async fn of(settings: &Settings, parts: &Parts) -> Option<Self> {
        let chosen = match &settings.chooser {
            Some(choose) => choose(parts).await,
            None => Vec::new(),
        };
        let mut asking = Self::default();
        for rule in chosen.iter().chain(&settings.rules) {
            asking.add(rule, settings, parts)?;
        }
        Some(asking)
    }

    fn add(&mut self, rule: &Rule, settings: &Settings, parts: &Parts) -> Option<()> {
        let cost = rule.cost.as_ref().or(settings.cost.as_ref()).map_or(1, |cost| cost(parts));
        if cost == 0 {
            return Some(());
        }
        let ask = match (rule.key.of(parts), settings.missing_key) {
            (Some(key), _) => rule.gate.ask(key),
            (None, MissingKey::Share) => rule.gate.ask(NO_KEY),
            (None, MissingKey::Skip) => return Some(()),
            (None, MissingKey::Refuse) => return None,
        };
        self.asks.push(ask.cost(cost));
        self.policies.push(Policy::new(&rule.gate, rule.name.clone()));
        self.charges.push(rule.charge.as_ref().unwrap_or(&settings.charge).clone());
        Some(())
    }
}

/// One ask alone is answered by whatever knows: a lease, the deny cache, a batch with others.
pub(super) async fn check(asks: &[Ask]) -> Result<AllDecision, Error> {
    match asks {
        [ask] => Ok(AllDecision::of_one(ask.gate.decide(ask.as_ref()).await?)),
        [first, ..] => first.gate.core.check_all(asks.to_vec()).await,
        [] => Err(Error::config("nothing is asked")),
    }
}

//! Checks a change before anything is written: finds what it affects, and refuses mistakes.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::time::timeout;

use super::request::exact;
use super::{Action, Change, ChangedGate, Changes, GivenKey};
use crate::admin::{Found, Inspector, KeyStates, Shape, did_you_mean, listed};
use crate::error::Error;
use crate::key::Keyspace;
use crate::local::overrides::Override;
use crate::quota::{LONGEST_US, Quota};

/// The maximum gates that are read to find a name. With more, the name counts as known.
const MAX_GATES: usize = 10_000;

/// A change that can be made, from [`Changes::check`].
#[derive(Debug)]
pub struct CheckedChange {
    /// The change.
    pub change: Change,
    /// The states of the key; `None` for a change without a key, or if they are searched after the first write.
    pub states: Option<KeyStates>,
    /// The overrides of the key that the change ends.
    pub ended_overrides: Vec<Override>,
    /// Why there is nothing to change, as far as the check has found. It can be applied nevertheless.
    pub no_effect: Option<String>,
}

/// Why a change is not made. Nothing was changed.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// No rule, override or state is of the gate: its name is probably a mistake. [`Change::force`] makes the change.
    UnknownGate(String),
    /// It would have no effect. [`Change::force`] makes it.
    NoEffect(String),
    /// The quota of the key is not known: the operator must give it.
    NeedsQuota(String),
    /// It cannot be made.
    Impossible(String),
    /// The search has not ended within its bound, or before [`Changes::end_searches`].
    Unsearched(String),
    /// A value is wrong, or the search has failed.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownGate(text)
            | Self::NoEffect(text)
            | Self::NeedsQuota(text)
            | Self::Impossible(text) => f.write_str(text),
            Self::Unsearched(why) => write!(f, "{why}; nothing changed"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

/// # Checks
impl Changes {
    /// Finds what a change affects, without changing anything. Searches for the states of the key, except where
    /// [`apply`](Self::apply) first writes the state that a rule names.
    ///
    /// # Errors
    ///
    /// If the change is wrong or probably a mistake, if the search takes longer than its bound, or if Redis failed.
    pub async fn check(&self, change: Change) -> Result<CheckedChange, Refusal> {
        self.ensure_possible(&change)?;
        self.bounded(self.find_affected(change)).await.map_err(Refusal::Unsearched)?
    }

    /// Awaits a search. If it does not end within its bound, or before searches end, returns why.
    pub(super) async fn bounded<T>(&self, search: impl Future<Output = T>) -> Result<T, String> {
        let mut ended = self.has_ended.subscribe();
        let search = pin!(timeout(self.max_search, search));
        match select(search, pin!(ended.wait_for(|has_ended| *has_ended))).await {
            Either::Left((found, _)) => found.map_err(|_| {
                format!("the database has too many keys to search them within {}", exact(self.max_search))
            }),
            Either::Right(_) => Err("the program was told to end".to_owned()),
        }
    }

    /// Rejects a change that is wrong whatever is stored. Calls no server.
    fn ensure_possible(&self, Change { gate, action, force }: &Change) -> Result<(), Refusal> {
        if !matches!(action, Action::Forget { .. }) {
            Keyspace::check_gate_name(&gate.name)?;
        }
        if let Some(lasts) = action.lasts()
            && (lasts.as_micros() == 0 || lasts.as_micros() > u128::from(LONGEST_US))
        {
            return Err(Error::config(format!(
                "a change cannot last {}: write 90s, 15m, 1h30m or 7d, at most ten years (3650d)",
                exact(lasts)
            ))
            .into());
        }
        if let Action::Override { key: GivenKey::Stored(_), .. } = action {
            return Err(Error::config("an override needs the key itself, not its stored form").into());
        }
        let is_of_quota = matches!(action, Action::Block { .. } | Action::Override { .. });
        if is_of_quota && gate.is_in_rules && gate.quota.is_none() && !force {
            return Err(Refusal::NoEffect(format!(
                "the rule of gate `{gate}` has no quota: it allows or denies every request; nothing changed"
            )));
        }
        match self.inspector {
            Some(_) => Ok(()),
            None => ensure_possible_in_memory(gate, action, *force),
        }
    }

    async fn find_affected(&self, mut change: Change) -> Result<CheckedChange, Refusal> {
        let (mut states, mut ended_overrides, mut no_effect) = (None, Vec::new(), None);
        let (gate, force) = (&change.gate, change.force);
        match &mut change.action {
            Action::Block { key, .. } | Action::Unblock { key } | Action::Reset { key }
                if self.is_searched_later(gate, key) => {}
            Action::Block { key, quota, .. } => {
                let found = self.find(Some(&gate.name), key).await?;
                *quota = self.quota_of_block(gate, key, *quota, found.found.first(), force).await?;
                states = Some(found);
            }
            Action::Unblock { key } | Action::Reset { key } => {
                states = Some(self.find(Some(&gate.name), key).await?);
            }
            Action::Forget { key } => {
                states = Some(self.find(None, key).await?);
                ended_overrides = self.overrides_of(key).await?;
            }
            Action::Override { quota, .. } if !force => {
                self.ensure_known(gate).await?;
                self.ensure_same_kind(gate, quota).await?;
            }
            Action::Switch { .. } if !force => self.ensure_known(gate).await?,
            Action::Override { .. } | Action::Switch { .. } => {}
            Action::EndOverride { key } => {
                let of_key = self.overrides_of(key).await?.into_iter();
                let (of_gate, others) = of_key.partition::<Vec<_>, _>(|entry| entry.gate() == gate.name);
                no_effect = of_gate.is_empty().then(|| no_override(&gate.name, &others));
                ended_overrides = of_gate;
            }
            Action::EndSwitch => no_effect = not_switched(&gate.name, &self.overrides().await?),
        }
        if let Some(states) = &states {
            no_effect = self.no_effect_on(states, &change, !ended_overrides.is_empty())?;
        }
        Ok(CheckedChange { change, states, ended_overrides, no_effect })
    }

    /// Returns why the change of a key has nothing to change in these states, if it has not.
    fn no_effect_on(
        &self,
        states: &KeyStates,
        Change { gate, action, .. }: &Change,
        ends_overrides: bool,
    ) -> Result<Option<String>, Error> {
        let is_absent = states.names().is_empty();
        Ok(match action {
            Action::Unblock { key } | Action::Reset { key } if is_absent => {
                Some(self.inspector()?.no_state(Some(&gate.name), key))
            }
            Action::Forget { key } if is_absent && !ends_overrides => {
                Some(self.inspector()?.no_state(None, key))
            }
            Action::Unblock { key } => {
                let has_block = states.found.iter().any(Found::is_blocked);
                let is_nothing = !has_block && states.with_denials.is_empty();
                is_nothing.then(|| format!("{key} is not blocked at {gate}"))
            }
            _ => None,
        })
    }

    /// Returns whether the key's state is known from the rule's quota, so that it can be written before the search. A
    /// block may be urgent, and the search takes long in a large database.
    fn is_searched_later(&self, gate: &ChangedGate, key: &GivenKey) -> bool {
        self.inspector.is_none() || (gate.quota.is_some() && matches!(key, GivenKey::Plain(_)))
    }

    fn inspector(&self) -> Result<&Inspector, Error> {
        self.inspector.as_ref().ok_or_else(|| Error::config("the limiter has no Redis to search"))
    }

    /// Finds all states of the key at one gate or at all gates.
    pub(super) async fn find(&self, gate: Option<&str>, key: &GivenKey) -> Result<KeyStates, Error> {
        let inspector = self.inspector()?;
        inspector.find_key(gate, &inspector.stored_forms(key)).await
    }

    pub(super) async fn overrides(&self) -> Result<Vec<Override>, Error> {
        self.limiter.control().overrides().await
    }

    /// Returns the overrides of a key at all gates.
    pub(super) async fn overrides_of(&self, key: &GivenKey) -> Result<Vec<Override>, Error> {
        let forms = key.forms(self.limiter.pipeline.keyspace());
        let mut overrides = self.overrides().await?;
        overrides.retain(|entry| matches!(entry, Override::Quota { key, .. } if forms.contains(key)));
        Ok(overrides)
    }

    /// Returns the quota whose state a block creates; `None` for a stored form, which names no state.
    async fn quota_of_block(
        &self,
        gate: &ChangedGate,
        key: &GivenKey,
        quota: Option<Quota>,
        found: Option<&Found>,
        force: bool,
    ) -> Result<Option<Quota>, Refusal> {
        match (key, quota, found) {
            (GivenKey::Stored(_), _, Some(_)) => Ok(None),
            (GivenKey::Stored(_), _, None) => Err(Refusal::Impossible(format!(
                "{}, so how it is stored is unknown; nothing changed: give the key itself",
                self.inspector()?.no_state(Some(&gate.name), key)
            ))),
            (_, Some(quota), found) => {
                if found.is_none() && !force {
                    self.ensure_known(gate).await?;
                }
                Ok(Some(quota))
            }
            (_, None, Some(found)) => Ok(Some(found.quota()?)),
            (_, None, None) => self.quota_of_other_keys(&gate.name).await.map(Some),
        }
    }

    /// Returns a quota whose state has the form of the gate's other keys.
    async fn quota_of_other_keys(&self, gate: &str) -> Result<Quota, Refusal> {
        let inspector = self.inspector()?;
        let shapes = inspector.gate_shapes(gate).await?;
        let mut samples = shapes.values();
        match (samples.next(), samples.next()) {
            (Some(sample), None) => {
                let read = inspector.read(std::slice::from_ref(sample)).await?;
                // The sample may have expired meanwhile.
                Ok(read.first().map_or_else(|| sample.shape.quota(1), Found::quota)?)
            }
            (None, _) => Err(Refusal::NeedsQuota(format!(
                "no state of gate {gate}, so its algorithm is unknown; nothing changed"
            ))),
            (Some(_), Some(_)) => Err(Refusal::NeedsQuota(format!(
                "the state of gate {gate} is stored as {}; nothing changed",
                joined(shapes.keys())
            ))),
        }
    }

    /// Fails if no rule, override or state is of the gate: then its name is probably a mistake. Reads the names in the
    /// database until it finds one of the gate.
    async fn ensure_known(&self, gate: &ChangedGate) -> Result<(), Refusal> {
        let Some(inspector) = self.inspector.as_ref().filter(|_| !gate.is_in_rules) else { return Ok(()) };
        let overrides = self.overrides().await?;
        let mut gates: BTreeSet<String> = overrides.iter().map(|entry| entry.gate().to_owned()).collect();
        let mut scan = inspector.scan(None);
        while !gates.contains(&gate.name) && gates.len() < MAX_GATES {
            let Some(page) = scan.next().await? else {
                let names = || gates.iter().map(String::as_str);
                let exists = match gates.is_empty() {
                    true => "no gate has state".to_owned(),
                    false => format!("gates with state: {}", listed(names())),
                };
                return Err(Refusal::UnknownGate(format!(
                    "no gate `{}` in namespace {}{}; nothing changed\n{exists}",
                    gate.name,
                    inspector.namespace(),
                    did_you_mean(&gate.name, names()),
                )));
            };
            gates.extend(page.names.into_iter().map(|name| name.gate));
        }
        Ok(())
    }

    /// Fails if the gate limits operations in flight and the quota is a rate, or the reverse: services apply only an
    /// override of the gate's own kind.
    async fn ensure_same_kind(&self, gate: &ChangedGate, quota: &Quota) -> Result<(), Refusal> {
        let Some(inspector) = &self.inspector else { return Ok(()) };
        let is_same = |own: &Quota| own.is_in_flight() == quota.is_in_flight();
        let own = match &gate.quota {
            Some(own) if is_same(own) => return Ok(()),
            Some(own) => format!("has the quota {own}"),
            None => {
                let shapes = inspector.gate_shapes(&gate.name).await?;
                let mut quotas = shapes.keys().filter_map(|shape| shape.quota(1).ok());
                if shapes.is_empty() || quotas.any(|own| is_same(&own)) {
                    return Ok(());
                }
                format!("is stored as {}", joined(shapes.keys()))
            }
        };
        let kind =
            if quota.is_in_flight() { "a limit in flight" } else { "a rate, and not a limit in flight" };
        Err(Refusal::NoEffect(format!(
            "{gate} {own}, and {quota} is {kind}: services would ignore it; nothing changed"
        )))
    }
}

/// The gates of a limiter in memory are those of the caller's rules: it has no names to search.
fn ensure_possible_in_memory(gate: &ChangedGate, action: &Action, force: bool) -> Result<(), Refusal> {
    let name = &gate.name;
    if !force && !gate.is_in_rules {
        return Err(Refusal::UnknownGate(format!(
            "no rule of this service has the gate {name}; nothing changed"
        )));
    }
    if let Some(GivenKey::Stored(_)) = action.key() {
        return Err(Refusal::Failed(Error::config(
            "`key` is no stored form of a key: write % only before two hexadecimal digits, or give the key itself \
             without `stored`",
        )));
    }
    let is_of_state = matches!(action, Action::Block { .. } | Action::Unblock { .. } | Action::Reset { .. });
    match is_of_state && gate.quota.is_none() {
        true => {
            Err(Refusal::Impossible(format!("no rule with a quota has the gate {name}; nothing changed")))
        }
        false => Ok(()),
    }
}

/// Returns why the switch of a gate cannot be ended; `None` if it can.
fn not_switched(gate: &str, overrides: &[Override]) -> Option<String> {
    let switched = overrides.iter().filter(|entry| matches!(entry, Override::Switch { .. }));
    let switched = switched.map(Override::gate);
    if switched.clone().any(|other| other == gate) {
        return None;
    }
    let exists = match switched.clone().next() {
        None => "no gate is switched".to_owned(),
        Some(_) => format!("switched gates: {}", listed(switched.clone())),
    };
    let near = did_you_mean(gate, switched);
    Some(format!("{gate} is not switched{near}; nothing changed\n{exists}"))
}

/// Returns why the override of a key cannot be ended: `others` are its overrides at other gates.
fn no_override(gate: &str, others: &[Override]) -> String {
    let gates = others.iter().map(Override::gate);
    let exists = match others {
        [] => "the key has no override at any gate: see `tidegate overrides`".to_owned(),
        _ => format!("the key has overrides at: {}", listed(gates.clone())),
    };
    let near = did_you_mean(gate, gates);
    format!("no override of this key at {gate}{near}; nothing changed\n{exists}")
}

fn joined<'s>(shapes: impl Iterator<Item = &'s Shape>) -> String {
    shapes.map(ToString::to_string).collect::<Vec<_>>().join(" and as ")
}

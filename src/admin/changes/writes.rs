//! Writes checked changes.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::timeout;

use super::checks::too_many_keys;
use super::request::exact;
use super::{Action, Change, ChangedGate, Changes, CheckedChange, Effect, GivenKey};
use crate::admin::{Found, Inspector, KeyStates, Name};
use crate::error::Error;
use crate::limiter::gate::Gate;
use crate::local::overrides::Override;
use crate::quota::Quota;

impl Changes {
    pub(super) async fn write(&self, checked: CheckedChange) -> Result<Effect, Error> {
        let CheckedChange { change: Change { gate, action, .. }, states, ended_overrides, no_effect } =
            checked;
        let control = self.limiter.control();
        let mut effect = match &action {
            Action::Block { key, lasts, quota } => self.block(&gate, key, *lasts, *quota, states).await?,
            Action::Unblock { key } => self.unblock(&gate, key, states).await?,
            Action::Reset { key } => self.reset(&gate, key, states).await?,
            Action::Forget { .. } => self.forget(states.unwrap_or_default(), &ended_overrides).await?,
            Action::Override { key: GivenKey::Plain(key), quota, lasts } => {
                control.set_override(&gate.name, key, *quota, *lasts).await?;
                Effect::changed(format!("has the quota {quota} for {}", exact(*lasts)))
            }
            Action::EndOverride { key } | Action::Override { key, .. } => {
                self.end_overrides(&ended_overrides).await?;
                if let (true, GivenKey::Plain(key)) = (ended_overrides.is_empty(), key) {
                    // Another version of tidegate may have written an override that this one does not know.
                    control.end_override(&gate.name, key).await?;
                }
                match ended_overrides.is_empty() {
                    true => Effect::nothing("the key has no override"),
                    false => Effect::changed("has the gate's own quota again"),
                }
            }
            Action::Switch { to, lasts } => {
                control.switch(&gate.name, *to, *lasts).await?;
                Effect::changed(format!("switched {to}"))
            }
            Action::EndSwitch => {
                control.end_switch(&gate.name).await?;
                match no_effect {
                    Some(_) => Effect::nothing("the gate was not switched"),
                    None => Effect::changed("follows its own quota again"),
                }
            }
        };
        if let Some(key) = action.key() {
            let keyspace = self.limiter.pipeline.keyspace();
            let shown = effect.redis_keys.into_iter().map(|it| key.redacted_in(it, keyspace));
            effect.redis_keys = shown.collect();
        }
        if let Some(why) = &effect.incomplete {
            effect.result += &format!("; {why}");
        }
        Ok(effect)
    }

    /// Blocks the existing states of the key, and those that a service would create for it: of the rule's quota, of the
    /// given quota, and of an override.
    async fn block(
        &self,
        gate: &ChangedGate,
        key: &GivenKey,
        lasts: Duration,
        quota: Option<Quota>,
        states: Option<KeyStates>,
    ) -> Result<Effect, Error> {
        let mut effect = Effect::changed(format!("blocked for {}", exact(lasts)));
        for quota in [gate.quota, quota].into_iter().flatten() {
            let Some((own, key)) = self.own_gate(&gate.name, Some(quota), key).await? else { continue };
            if effect.redis_keys.insert(own.redis_key(key)?) {
                own.block(key, lasts).await?;
            }
        }
        let is_written = !effect.redis_keys.is_empty();
        let Some((inspector, states)) = self.other_states(gate, key, states, &mut effect).await else {
            return Ok(effect);
        };
        for found in states.found {
            if !effect.redis_keys.contains(&found.name.redis_key) {
                let blocked = inspector.block(&found, lasts).await;
                if effect.further(is_written, blocked)?.is_some() {
                    effect.redis_keys.insert(found.name.redis_key);
                }
            }
        }
        Ok(effect)
    }

    async fn unblock(
        &self,
        gate: &ChangedGate,
        key: &GivenKey,
        states: Option<KeyStates>,
    ) -> Result<Effect, Error> {
        let (mut effect, mut own_names) = (Effect::default(), Vec::new());
        let own = self.own_gate(&gate.name, gate.quota, key).await?;
        if let Some((own, plain)) = &own {
            if let Some(inspector) = &self.inspector {
                own_names = self.own_names(own, plain, key).await?;
                let blocked = inspector.read(&own_names).await?.into_iter().filter(Found::is_blocked);
                effect.redis_keys.extend(blocked.map(|found| found.name.redis_key));
                for name in &own_names {
                    effect.removed += u64::from(match inspector.denials(name).await {
                        Err(error) if error.is_corrupt_state() => true,
                        denials => denials?.is_some(),
                    });
                }
            }
            own.unblock(plain).await?;
        }
        let Some((inspector, states)) = self.other_states(gate, key, states, &mut effect).await else {
            // In memory, nothing tells whether the key was blocked.
            return Ok(Effect::changed("no longer blocked"));
        };
        // The search takes long: an own state may be blocked again since.
        let is_other = |name: &Name| !own_names.contains(name);
        // The counts first: a denial after the block would otherwise be added to the denials before it.
        for name in states.with_denials.iter().filter(|name| is_other(name)) {
            let removed = inspector.remove_denials(name).await;
            effect.removed += u64::from(effect.further(own.is_some(), removed)?.is_some());
        }
        for found in states.found.into_iter().filter(|found| found.is_blocked() && is_other(&found.name)) {
            let unblocked = inspector.block(&found, Duration::ZERO).await;
            if effect.further(own.is_some(), unblocked)?.is_some() {
                effect.redis_keys.insert(found.name.redis_key);
            }
        }
        let (has_changed, result) = match (effect.redis_keys.is_empty(), effect.removed) {
            (true, 0) => (false, "the key is not blocked"),
            (true, _) => (true, "the key is not blocked; its counted denials are removed"),
            (false, _) => (true, "no longer blocked"),
        };
        Ok(Effect { has_changed, result: result.to_owned(), ..effect })
    }

    async fn reset(
        &self,
        gate: &ChangedGate,
        key: &GivenKey,
        states: Option<KeyStates>,
    ) -> Result<Effect, Error> {
        let (mut effect, mut own_names) = (Effect::changed("reset"), Vec::new());
        let own = self.own_gate(&gate.name, gate.quota, key).await?;
        if let Some((own, plain)) = &own {
            if let Some(inspector) = &self.inspector {
                own_names = self.own_names(own, plain, key).await?;
                let found = inspector.read(&own_names).await?;
                effect.redis_keys.extend(found.into_iter().map(|found| found.name.redis_key));
                effect.removed += inspector.remove(&own_names).await?;
            }
            // Also forgets the denials that this process has cached.
            own.reset(plain).await?;
        }
        if let Some((inspector, states)) = self.other_states(gate, key, states, &mut effect).await {
            let mut names = states.names();
            // The search takes long: an own state may have new usage since.
            names.retain(|name| !own_names.contains(name));
            let removed = inspector.remove(&names).await;
            if let Some(removed) = effect.further(own.is_some(), removed)? {
                let found = redis_keys(&states).into_iter();
                effect.redis_keys.extend(found.filter(|it| names.iter().any(|name| name.redis_key == *it)));
                effect.removed += removed;
            }
            effect.has_changed = effect.removed > 0;
        }
        if !effect.has_changed {
            effect.result = "the key has no state".to_owned();
        }
        Ok(effect)
    }

    async fn forget(&self, states: KeyStates, ended: &[Override]) -> Result<Effect, Error> {
        // Overrides end first: with an active override, a service could create new state of the key.
        self.end_overrides(ended).await?;
        let (names, redis_keys) = (states.names(), redis_keys(&states));
        let removed = match &self.inspector {
            Some(inspector) => inspector.remove(&names).await?,
            None => 0,
        };
        let effect = match names.is_empty() && ended.is_empty() {
            true => Effect::nothing("the key has no state and no override"),
            false => {
                let (states, overrides) = (names.len(), ended.len());
                Effect::changed(format!("states removed: {states}, overrides ended: {overrides}"))
            }
        };
        Ok(Effect { redis_keys, removed, ..effect })
    }

    async fn end_overrides(&self, overrides: &[Override]) -> Result<(), Error> {
        for entry in overrides {
            if let Override::Quota { gate, key, .. } = entry {
                self.limiter.pipeline.overrides_for(gate)?.set_override(gate, key, None, None).await?;
            }
        }
        Ok(())
    }

    /// Returns the gate with this quota, and the key itself, if both are known. The methods of the gate reach the state
    /// of this quota and of an override only, but also the denials that this process has cached. Reads the overrides,
    /// which a process that makes a single change does not follow.
    async fn own_gate<'k>(
        &self,
        gate: &str,
        quota: Option<Quota>,
        key: &'k GivenKey,
    ) -> Result<Option<(Gate, &'k [u8])>, Error> {
        match (quota, key) {
            (Some(quota), GivenKey::Plain(key)) => {
                if let Some(inspector) = &self.inspector {
                    inspector.read_overrides().await?;
                }
                Ok(Some((self.limiter.try_gate(gate, quota)?, key)))
            }
            _ => Ok(None),
        }
    }

    /// Returns the names of the states that decide the key: of the gate's quota, and of an override.
    async fn own_names(&self, gate: &Gate, plain: &[u8], key: &GivenKey) -> Result<Vec<Name>, Error> {
        let name = gate.name().unwrap_or_default();
        let mut redis_keys = BTreeSet::from([gate.redis_key(plain)?]);
        for entry in self.overrides_of(key).await?.iter().filter(|entry| entry.gate() == name) {
            if let Override::Quota { quota, .. } = entry {
                redis_keys.insert(self.limiter.try_gate(name, *quota)?.redis_key(plain)?);
            }
        }
        let Some(inspector) = &self.inspector else { return Ok(Vec::new()) };
        Ok(redis_keys.iter().filter_map(|redis_key| inspector.parse(redis_key)).collect())
    }

    /// Returns the states that the check has found. Searches for them if it has not; after a failed search, there are
    /// none, and the effect says why. `None` without Redis.
    async fn other_states(
        &self,
        gate: &ChangedGate,
        key: &GivenKey,
        states: Option<KeyStates>,
        effect: &mut Effect,
    ) -> Option<(&Inspector, KeyStates)> {
        let inspector = self.inspector.as_ref()?;
        if let Some(states) = states {
            return Some((inspector, states));
        }
        let mut ended = self.has_ended.subscribe();
        let search = timeout(self.max_search, self.find(Some(&gate.name), key));
        let why = match select(pin!(search), pin!(ended.wait_for(|has_ended| *has_ended))).await {
            Either::Left((Ok(Ok(states)), _)) => return Some((inspector, states)),
            Either::Left((Ok(Err(error)), _)) => error.to_string(),
            Either::Left((Err(_), _)) => too_many_keys(self.max_search),
            Either::Right(_) => "the program was told to end".to_owned(),
        };
        effect.incomplete = Some(format!("other forms were not searched: {why}"));
        Some((inspector, KeyStates::default()))
    }
}

fn redis_keys(states: &KeyStates) -> BTreeSet<String> {
    states.found.iter().map(|found| found.name.redis_key.clone()).collect()
}

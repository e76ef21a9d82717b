//! Writes checked changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::request::exact;
use super::{Action, Change, ChangedGate, Changes, CheckedChange, Effect, GivenKey};
use crate::admin::{Found, Inspector, KeyStates, Name};
use crate::error::Error;
use crate::local::overrides::Override;
use crate::quota::Quota;
use crate::quota::algorithm::MAX_DEBT;
use crate::store::{Target, Write};

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
        let for_us = u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX).min(MAX_DEBT);
        let own = self.own_states(&gate.name, [gate.quota, quota], key).await?;
        for state in own {
            let blocked = self.limiter.pipeline.write_for_operator(&state, Write::Block { for_us }).await;
            if effect.further(!effect.redis_keys.is_empty(), blocked)?.is_some() {
                effect.redis_keys.insert(state.redis_key);
            }
        }
        let is_written = !effect.redis_keys.is_empty();
        let Some((inspector, states)) = self.other_states(gate, key, states, &mut effect).await else {
            return Ok(effect);
        };
        for found in states.found {
            if self.has_to_end(&mut effect) {
                break;
            }
            if !effect.redis_keys.contains(&found.name.redis_key) {
                let blocked = inspector.block(&found, for_us).await;
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
        let mut effect = Effect::default();
        let own = self.own_states(&gate.name, [gate.quota], key).await?;
        let own_names = self.names(&own);
        if let Some(inspector) = &self.inspector {
            let blocked = inspector.read(&own_names).await?.into_iter().filter(Found::is_blocked);
            effect.redis_keys.extend(blocked.map(|found| found.name.redis_key));
            for name in &own_names {
                effect.removed += u64::from(match inspector.denials(name).await {
                    Err(error) if error.is_corrupt_state() => true,
                    denials => denials?.is_some(),
                });
            }
        }
        for (at, state) in own.iter().enumerate() {
            let unblocked = self.limiter.pipeline.write_for_operator(state, Write::Block { for_us: 0 }).await;
            effect.further(at > 0, unblocked)?;
        }
        let Some((inspector, states)) = self.other_states(gate, key, states, &mut effect).await else {
            // In memory, nothing tells whether the key was blocked.
            return Ok(Effect::changed("no longer blocked"));
        };
        // The search takes long: an own state may be blocked again since.
        let is_other = |name: &Name| !own_names.contains(name);
        // The counts first: a denial after the block would otherwise be added to the denials before it.
        for name in states.with_denials.iter().filter(|name| is_other(name)) {
            if self.has_to_end(&mut effect) {
                break;
            }
            let removed = inspector.remove_denials(name).await;
            effect.removed += u64::from(effect.further(!own.is_empty(), removed)?.is_some());
        }
        for found in states.found.into_iter().filter(|found| found.is_blocked() && is_other(&found.name)) {
            if self.has_to_end(&mut effect) {
                break;
            }
            let unblocked = inspector.block(&found, 0).await;
            if effect.further(!own.is_empty(), unblocked)?.is_some() {
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
        let mut effect = Effect::changed("reset");
        let own = self.own_states(&gate.name, [gate.quota], key).await?;
        let own_names = self.names(&own);
        match &self.inspector {
            None => {
                for state in &own {
                    self.limiter.pipeline.write_for_operator(state, Write::Reset).await?;
                }
            }
            Some(inspector) => {
                let _forget =
                    own.iter().map(|state| self.limiter.pipeline.forget_on_drop(state)).collect::<Vec<_>>();
                let found = inspector.read(&own_names).await?;
                effect.redis_keys.extend(found.into_iter().map(|found| found.name.redis_key));
                effect.removed += inspector.remove(&own_names).await?;
            }
        }
        if let Some((inspector, states)) = self.other_states(gate, key, states, &mut effect).await {
            let mut names = states.names();
            // The search takes long: an own state may have new usage since.
            names.retain(|name| !own_names.contains(name));
            let removed = inspector.remove(&names).await;
            if let Some(removed) = effect.further(!own.is_empty(), removed)? {
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

    /// Returns the states that decide the key now or once its override ends: of an override, which comes first, and of these
    /// quotas. None if no quota or only a hash of the key is known.
    async fn own_states(
        &self,
        gate: &str,
        quotas: impl IntoIterator<Item = Option<Quota>>,
        key: &GivenKey,
    ) -> Result<Vec<Target>, Error> {
        let (mut own, quotas) = (Vec::new(), quotas.into_iter().flatten().collect::<Vec<_>>());
        let (GivenKey::Plain(plain), [first, ..]) = (key, &*quotas) else { return Ok(own) };
        // An override of the other kind decides nothing: services ignore it.
        let is_followed = |quota: &Quota| quota.is_in_flight() == first.is_in_flight();
        let overrides = self.overrides_of(key).await?.into_iter();
        let overrides = overrides.filter_map(|entry| match entry {
            Override::Quota { gate: of, quota, .. } if of == gate && is_followed(&quota) => Some(quota),
            _ => None,
        });
        for quota in overrides.chain(quotas.iter().copied()) {
            let target = Target::new(&Arc::new(self.limiter.pipeline.gate_info(gate, quota)?), plain, None);
            if !own.contains(&target) {
                own.push(target);
            }
        }
        Ok(own)
    }

    /// Returns whether the change is to end after its first form. Then the others stay as they are, and the effect says so.
    fn has_to_end(&self, effect: &mut Effect) -> bool {
        let has_begun = !effect.redis_keys.is_empty() || effect.removed > 0;
        let has_to_end = has_begun && *self.has_ended.borrow();
        if has_to_end {
            let why = || "further forms of the key are as before: the program was told to end".to_owned();
            effect.incomplete.get_or_insert_with(why);
        }
        has_to_end
    }

    fn names(&self, states: &[Target]) -> Vec<Name> {
        let namespace = self.limiter.pipeline.keyspace().namespace();
        let names = states.iter().map(|state| Name::parse(namespace, state.redis_key.as_bytes()));
        names.filter_map(Result::ok).collect()
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
        let searched = self.bounded(self.find(Some(&gate.name), key)).await;
        let found = searched.and_then(|found| found.map_err(|error| error.to_string()));
        let states = found.unwrap_or_else(|why| {
            effect.incomplete = Some(format!("other forms were not searched: {why}"));
            KeyStates::default()
        });
        Some((inspector, states))
    }
}

fn redis_keys(states: &KeyStates) -> BTreeSet<String> {
    states.found.iter().map(|found| found.name.redis_key.clone()).collect()
}

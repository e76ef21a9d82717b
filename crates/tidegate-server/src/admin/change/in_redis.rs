//! Changes of the state in Redis. They find the states of a key by their form there, so that they also reach keys of
//! services that link the library, and keys from before the rules changed.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate::admin::{Found, Inspector, Name};
use tidegate::{Gate, Override, Quota};

use super::effect::Effect;
use super::failed::Failed;
use super::kinds::{Change, Key, human};
use super::search::{find, stored_forms, within_timeout};
use crate::admin::state::AdminState;

/// The pages that are read to find how a gate's keys are stored: 100,000 keys of the database.
const MAX_PAGES: usize = 100;

pub(super) async fn apply(
    state: &AdminState,
    inspector: &Inspector,
    gate: &str,
    change: Change,
    force: bool,
) -> Result<Effect, Failed> {
    match change {
        Change::Block { key, duration, quota } => {
            block(state, inspector, gate, &key, duration, quota, force).await
        }
        Change::Unblock { key } => unblock(state, inspector, gate, &key).await,
        Change::Reset { key } => {
            let names = find(inspector, gate, &key).await?.names();
            let removed = inspector.remove(&names).await?;
            if let Some((gate, key)) = own_gate(state, gate, &key)? {
                gate.reset(key).await?;
            }
            Ok(match (names.is_empty(), removed) {
                (true, _) => Effect::nothing("the key has no state"),
                (false, 0) => Effect::nothing("reset"),
                (false, _) => Effect::changed("reset"),
            })
        }
        Change::Override { key, quota, duration } => {
            ensure_known(state, inspector, gate, force).await?;
            ensure_same_kind(inspector, gate, &quota, force).await?;
            let Key::Clear(key) = key else {
                return Err(Failed::no_effect("an override needs the key itself"));
            };
            state.limiter.control().set_override(gate, key, quota, duration).await?;
            Ok(Effect::changed(format!("has the quota {quota} for {}", human(duration))))
        }
        Change::EndOverride { key } => end_override(inspector, gate, &key).await,
        Change::Switch { to, duration } => {
            ensure_known(state, inspector, gate, force).await?;
            state.limiter.control().switch(gate, to, duration).await?;
            Ok(Effect::changed(format!("switched {to}")))
        }
        Change::EndSwitch => {
            let overrides = inspector.overrides().await?;
            let is_switched = overrides
                .iter()
                .any(|entry| matches!(entry, Override::Switch { gate: of, .. } if of == gate));
            state.limiter.control().end_switch(gate).await?;
            Ok(match is_switched {
                true => Effect::changed("follows its own quota again"),
                false => Effect::nothing("the gate was not switched"),
            })
        }
    }
}

/// Returns the gate of a rule of this service. Its methods reach the state of its own quota only, but also the denials
/// that this process has cached: other instances apply the change up to the time of their cache later.
fn own_gate<'k>(state: &AdminState, gate: &str, key: &'k Key) -> Result<Option<(Gate, &'k str)>, Failed> {
    match (key, state.rule_quota(gate)) {
        (Key::Clear(key), Some(quota)) => Ok(Some((state.limiter.try_gate(gate, quota)?, key))),
        _ => Ok(None),
    }
}

/// Returns the names of the states by which this service decides the key: of the rule's quota, and of an override.
async fn own_names(
    state: &AdminState,
    inspector: &Inspector,
    gate: &Gate,
    key: &str,
) -> Result<Vec<Name>, Failed> {
    let written = inspector.stored_forms(key.as_bytes());
    let mut redis_keys = BTreeSet::from([gate.redis_key(key)?]);
    for entry in inspector.overrides().await? {
        if let Override::Quota { gate: of, key: of_key, quota, .. } = entry
            && gate.name() == Some(&*of)
            && written.contains(&of_key)
        {
            redis_keys.insert(state.limiter.try_gate(&of, quota)?.redis_key(key)?);
        }
    }
    Ok(redis_keys.iter().filter_map(|redis_key| inspector.parse(redis_key)).collect())
}

/// Blocks the existing states of the key, and the state that a service would create for it. If an override gives the
/// key another quota, the created state is that of the override.
async fn block(
    state: &AdminState,
    inspector: &Inspector,
    gate: &str,
    key: &Key,
    duration: Duration,
    quota: Option<Quota>,
    force: bool,
) -> Result<Effect, Failed> {
    let mut blocked = BTreeSet::new();
    // First the state that the rules know: a block may be urgent, and the search takes long in a large database.
    if let Some((own, key)) = own_gate(state, gate, key)? {
        blocked.insert(block_own(inspector, &own, key, duration).await?);
    }
    let effect = Effect::changed(format!("blocked for {}", human(duration)));
    let found = match find(inspector, gate, key).await {
        Ok(states) => states.found,
        Err(failed) if !blocked.is_empty() => return Ok(effect.without_other_forms(failed)),
        Err(failed) => return Err(failed.into()),
    };
    if let Key::Clear(key) = key {
        let quota = match (quota, found.first()) {
            (Some(quota), first) => {
                if first.is_none() {
                    ensure_known(state, inspector, gate, force).await?;
                }
                quota
            }
            (None, Some(first)) => first.quota()?,
            (None, None) => quota_of_other_keys(inspector, gate).await?,
        };
        let gate = state.limiter.try_gate(gate, quota)?;
        if !blocked.contains(&gate.redis_key(key)?) {
            blocked.insert(block_own(inspector, &gate, key, duration).await?);
        }
    } else if found.is_empty() {
        return Err(Failed::no_effect(
            "the key has no state, so how it is stored is unknown: give the key itself",
        ));
    }
    for found in found {
        if !blocked.contains(&found.name.redis_key) {
            inspector.block(&found, duration).await?;
            blocked.insert(found.name.redis_key);
        }
    }
    Ok(effect)
}

/// Blocks the state of the gate's quota, and that of an override. Returns the Redis key of the former.
async fn block_own(
    inspector: &Inspector,
    gate: &Gate,
    key: &str,
    duration: Duration,
) -> Result<String, Failed> {
    inspector.read_overrides().await?;
    gate.block(key, duration).await?;
    Ok(gate.redis_key(key)?)
}

/// What an unblock has found.
#[derive(Default)]
struct Lifted {
    blocks: usize,
    denials: usize,
}

impl Lifted {
    fn effect(&self) -> Effect {
        match (self.blocks, self.denials) {
            (0, 0) => Effect::nothing("the key is not blocked"),
            (0, _) => Effect::changed("the key is not blocked; its counted denials are removed"),
            (_, _) => Effect::changed("no longer blocked"),
        }
    }
}

/// Unreadable state counts as blocked: the attempt to unblock it reports the error.
fn is_blocked(found: &Found) -> bool {
    found.usage.as_ref().map_or(true, |usage| usage.blocked_for.is_some())
}

async fn unblock(state: &AdminState, inspector: &Inspector, gate: &str, key: &Key) -> Result<Effect, Failed> {
    let mut lifted = Lifted::default();
    let own = own_gate(state, gate, key)?;
    // First the states that the rules know, as for a block.
    if let Some((own, key)) = &own {
        let names = own_names(state, inspector, own, key).await?;
        lifted.blocks += inspector.read(&names).await?.iter().filter(|found| is_blocked(found)).count();
        for name in &names {
            lifted.denials += usize::from(inspector.denials(name).await?.is_some());
        }
        own.unblock(key).await?;
    }
    let states = match find(inspector, gate, key).await {
        Ok(states) => states,
        Err(failed) if own.is_some() => return Ok(lifted.effect().without_other_forms(failed)),
        Err(failed) => return Err(failed.into()),
    };
    // The counts first: a denial after the block would otherwise be added to the denials before it.
    for name in &states.with_denials {
        inspector.remove_denials(name).await?;
        lifted.denials += 1;
    }
    for found in states.found.iter().filter(|found| is_blocked(found)) {
        inspector.block(found, Duration::ZERO).await?;
        lifted.blocks += 1;
    }
    Ok(lifted.effect())
}

async fn end_override(inspector: &Inspector, gate: &str, key: &Key) -> Result<Effect, Failed> {
    let written = stored_forms(inspector, key);
    let overrides = inspector.overrides().await?;
    let of_key = overrides.iter().filter_map(|entry| match entry {
        Override::Quota { gate: of, key, .. } if of == gate && written.contains(key) => Some(key),
        _ => None,
    });
    let mut ended = 0;
    for key in of_key {
        inspector.end_override(gate, key).await?;
        ended += 1;
    }
    Ok(match ended {
        0 => Effect::nothing("the key has no override"),
        _ => Effect::changed("has the gate's own quota again"),
    })
}

/// Fails if no rule, override or state is of the gate: then its name is probably a mistake.
async fn ensure_known(
    state: &AdminState,
    inspector: &Inspector,
    gate: &str,
    force: bool,
) -> Result<(), Failed> {
    if force || state.has_rule(gate) {
        return Ok(());
    }
    let overrides = inspector.overrides().await?;
    let is_of_gate = |entry: &Override| match entry {
        Override::Switch { gate: of, .. } | Override::Quota { gate: of, .. } => of == gate,
        _ => false,
    };
    if overrides.iter().any(is_of_gate) {
        return Ok(());
    }
    match within_timeout(inspector.gate_shapes(gate, MAX_PAGES)).await?.is_empty() {
        false => Ok(()),
        true => Err(Failed::no_effect(format!(
            "no rule and no state of gate {gate} in namespace {}; nothing changed. To change it anyway, set `force` to `true`",
            inspector.namespace()
        ))),
    }
}

/// Fails if the gate's keys limit operations in flight and the quota is a rate, or the reverse: services would ignore
/// the override.
async fn ensure_same_kind(
    inspector: &Inspector,
    gate: &str,
    quota: &Quota,
    force: bool,
) -> Result<(), Failed> {
    if force {
        return Ok(());
    }
    let shapes = within_timeout(inspector.gate_shapes(gate, MAX_PAGES)).await?;
    let is_same = |stored: Quota| stored.is_in_flight() == quota.is_in_flight();
    match shapes.is_empty() || shapes.keys().any(|shape| shape.quota(1).is_ok_and(is_same)) {
        true => Ok(()),
        false => Err(Failed::no_effect(format!(
            "the keys of gate {gate} are of another kind than {quota}: services would ignore it; nothing changed. To set \
             it anyway, set `force` to `true`"
        ))),
    }
}

/// Returns a quota whose state has the form of the gate's other keys.
async fn quota_of_other_keys(inspector: &Inspector, gate: &str) -> Result<Quota, Failed> {
    let shapes = within_timeout(inspector.gate_shapes(gate, MAX_PAGES)).await?;
    let how = "give `algorithm`, `limit` and `rate` or `window`";
    let mut samples = shapes.values();
    match (samples.next(), samples.next()) {
        (Some(sample), None) => {
            let read = inspector.read(std::slice::from_ref(sample)).await?;
            // The sample may have expired meanwhile.
            Ok(read.first().map_or_else(|| sample.shape.quota(1), Found::quota)?)
        }
        (None, _) => Err(Failed::no_effect(format!(
            "no rule and no state of gate {gate}, so its algorithm is unknown; nothing changed: {how}"
        ))),
        (Some(_), Some(_)) => Err(Failed::no_effect(format!(
            "the keys of gate {gate} are stored in several forms; nothing changed: {how}"
        ))),
    }
}

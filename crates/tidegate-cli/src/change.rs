//! `reset`, `block`, `unblock` and `forget`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use serde_json::json;
use tidegate::admin::{Found, Inspector, KeyStates};
use tidegate::{Limiter, Override, Quota};

use crate::args::{AsStored, Block, Forget, Reset};
use crate::failure::Failure;
use crate::key_search::{self, KeySearch};
use crate::known_gates;
use crate::output::{self, Output, Text};
use crate::quota::HOW_TO_SPECIFY;
use crate::units::human;

/// Removes the state of a key at a gate. Returns false if there is none, or without confirmation.
pub(crate) async fn reset(reset: &Reset, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let Reset { key, gate, as_stored, confirm } = reset;
    confirm.can_confirm()?;
    let states = key_search::find(inspector, Some(gate), key, as_stored).await?.states;
    let names = states.names();
    if names.is_empty() {
        return report_nothing(inspector, Some(gate), key, as_stored, out);
    }
    if !confirm.prompt(&format!("Reset {} at {gate}?", key.display()))? {
        return Ok(false);
    }
    let (found, removed) = (states.found, inspector.remove(&names).await?);
    report(out, &found, "removed", removed, &format!("{} at {gate} is reset", key.display()))
}

pub(crate) async fn unblock(unblock: &Reset, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let Reset { key, gate, as_stored, confirm } = unblock;
    confirm.can_confirm()?;
    let search = key_search::find(inspector, Some(gate), key, as_stored).await?;
    let KeyStates { found, with_denials, .. } = search.states;
    if found.is_empty() && with_denials.is_empty() {
        return report_nothing(inspector, Some(gate), key, as_stored, out);
    }
    let blocked: Vec<Found> = found.into_iter().filter(is_blocked).collect();
    let redis_keys: Vec<&str> = blocked.iter().map(|found| found.name.redis_key.as_str()).collect();
    let json = json!({
        "unblocked": blocked.len(),
        "counts_removed": with_denials.len(),
        "redis_keys": redis_keys,
    });
    let text = match (blocked.is_empty(), with_denials.is_empty()) {
        (false, _) => format!("{} is no longer blocked at {gate}", key.display()),
        (true, false) => {
            format!("{} is not blocked at {gate}; its counted denials are removed", key.display())
        }
        (true, true) => format!("{} is not blocked at {gate}", key.display()),
    };
    let has_effect = !blocked.is_empty() || !with_denials.is_empty();
    if has_effect && !confirm.prompt(&format!("Unblock {} at {gate}?", key.display()))? {
        return Ok(false);
    }
    // The counts first: a denial after the block would otherwise be added to the denials before it.
    for name in &with_denials {
        inspector.remove_denials(name).await?;
    }
    for found in &blocked {
        inspector.block(found, Duration::ZERO).await?;
    }
    out.print(&json, &[vec![text.into()]])?;
    Ok(has_effect)
}

fn is_blocked(found: &Found) -> bool {
    // Unreadable state counts as blocked: the attempt to unblock it reports the error.
    found.usage.as_ref().map_or(true, |usage| usage.blocked_for.is_some())
}

/// Blocks the existing states of the key, and the state that a service would create for it. If an override
/// gives the key another quota, the created state is that of the override.
pub(crate) async fn block(block: &Block, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Block { key, gate, duration, quota, as_stored, force, confirm } = block;
    confirm.can_confirm()?;
    let named = quota.gate(gate)?;
    let gate = &named.name;
    known_gates::ensure_valid_or_rule(limiter, gate)?;
    let inspector = Inspector::new(limiter)?;
    let found = key_search::find(&inspector, Some(gate), key, as_stored).await?.states.found;
    let quota = match (named.quota, found.first()) {
        (None, Some(found)) => found.quota()?,
        (_, None) if as_stored.stored => {
            return Err(Failure::usage(key_search::no_state_message(&inspector, Some(gate), key, as_stored)));
        }
        (Some(quota), found) => {
            if found.is_none() && !named.is_in_rules && !force.force {
                known_gates::ensure_known(&inspector, &inspector.overrides().await?, gate).await?;
            }
            quota
        }
        (None, None) => quota_of_other_keys(&inspector, gate).await?,
    };
    let question = format!("Block {} at {gate} for {}?", key.display(), human(*duration));
    if !confirm.prompt(&question)? {
        return Ok(false);
    }
    let mut redis_keys = BTreeSet::new();
    if !as_stored.stored {
        inspector.read_overrides().await?;
        let (gate, key) = (limiter.try_gate(gate, quota)?, key.as_encoded_bytes());
        gate.block(key, *duration).await?;
        redis_keys.insert(gate.redis_key(key)?);
    }
    for found in found {
        if !redis_keys.contains(&found.name.redis_key) {
            inspector.block(&found, *duration).await?;
            redis_keys.insert(found.name.redis_key);
        }
    }
    let text = format!("{} is blocked at {gate} for {}", key.display(), human(*duration));
    out.print(&json!({ "blocked": redis_keys.len(), "redis_keys": redis_keys }), &[vec![text.into()]])?;
    Ok(true)
}

/// Returns a quota whose state has the form of the gate's other keys.
async fn quota_of_other_keys(inspector: &Inspector, gate: &str) -> Result<Quota, Failure> {
    let shapes = inspector.gate_shapes(gate, usize::MAX).await?;
    let how = HOW_TO_SPECIFY;
    let Some(sample) = shapes.values().next() else {
        return Err(Failure::usage(format!("no state of gate {gate}, so its algorithm is unknown: {how}")));
    };
    if shapes.len() > 1 {
        let shapes: Vec<String> = shapes.keys().map(ToString::to_string).collect();
        return Err(Failure::usage(format!(
            "the state of gate {gate} is stored as {}: {how}",
            shapes.join(" and as ")
        )));
    }
    let read = inspector.read(std::slice::from_ref(sample)).await?;
    // The sample may have expired meanwhile.
    Ok(read.first().map_or_else(|| sample.shape.quota(1), Found::quota)?)
}

/// Removes the state of a key at all gates, and its overrides, which contain the key.
pub(crate) async fn forget(forget: &Forget, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let Forget { key, as_stored, confirm } = forget;
    confirm.can_confirm()?;
    let KeySearch { states, survey } = key_search::find(inspector, None, key, as_stored).await?;
    let (names, found) = (states.names(), states.found);
    let written = key_search::stored_forms(inspector, key, as_stored)?;
    let overrides = inspector.overrides().await?.into_iter();
    let overrides: Vec<(String, String)> = overrides
        .filter_map(|entry| match entry {
            Override::Quota { gate, key, .. } if written.contains(&key) => Some((gate, key)),
            _ => None,
        })
        .collect();
    survey.notes().iter().for_each(|note| output::warn(out.json, note));
    if names.is_empty() && overrides.is_empty() {
        return report_nothing(inspector, None, key, as_stored, out);
    }
    let gates = names.iter().map(|name| &name.gate).chain(overrides.iter().map(|(gate, _)| gate));
    let gates: BTreeSet<&str> = gates.map(String::as_str).collect();
    let gates = gates.into_iter().collect::<Vec<_>>().join(", ");
    let (states, key) = (count(names.len(), "state"), key.display());
    let and_overrides = match overrides.len() {
        0 => String::new(),
        number => format!(" and {}", count(number, "override")),
    };
    if !confirm.prompt(&format!("Remove {states}{and_overrides} of {key} (gates: {gates})?"))? {
        return Ok(false);
    }
    // Overrides end first: with an active override, a service could create new state of the key.
    for (gate, written) in &overrides {
        inspector.end_override(gate, written).await?;
    }
    let removed = inspector.remove(&names).await?;
    let redis_keys: Vec<&str> = found.iter().map(|found| found.name.redis_key.as_str()).collect();
    let json = json!({ "removed": removed, "overrides_ended": overrides.len(), "redis_keys": redis_keys });
    // The holds of a state are a Redis key of their own.
    let states = count(usize::try_from(removed).unwrap_or(usize::MAX).min(names.len()), "state");
    out.print(&json, &[vec![format!("removed {states}{and_overrides} of {key} (gates: {gates})").into()]])?;
    Ok(true)
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn report_nothing(
    inspector: &Inspector,
    gate: Option<&str>,
    key: &OsStr,
    as_stored: &AsStored,
    out: Output,
) -> Result<bool, Failure> {
    let text: Text = key_search::no_state_message(inspector, gate, key, as_stored).into();
    out.print(&json!({ "removed": 0, "redis_keys": [] }), &[vec![text]])?;
    Ok(false)
}

fn report(out: Output, found: &[Found], field: &str, count: u64, text: &str) -> Result<bool, Failure> {
    let redis_keys: Vec<&str> = found.iter().map(|found| found.name.redis_key.as_str()).collect();
    out.print(&json!({ field: count, "redis_keys": redis_keys }), &[vec![text.into()]])?;
    Ok(true)
}

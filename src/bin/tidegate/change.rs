//! `reset`, `block`, `unblock` and `forget`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use serde_json::json;
use tidegate::internals::{Found, Inspector, Name, Shape};
use tidegate::{Limiter, Order, Quota};

use crate::args::{AsStored, Block, Forget, Reset};
use crate::failure::Failure;
use crate::output::{self, Output, Text};
use crate::state::{self, Sought};
use crate::units::human;

/// Whether there was something, and it was meant.
pub(crate) async fn reset(reset: &Reset, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let Reset { key, gate, as_stored, confirm } = reset;
    confirm.can_ask()?;
    let Some(found) = of_gate(inspector, gate, key, as_stored, out).await? else { return Ok(false) };
    let question = format!("Make {} of {gate} as if it had never been asked for?", key.display());
    if !confirm.ask(&question)? {
        return Ok(false);
    }
    let removed = inspector.remove(&names(&found)).await?;
    done(
        out,
        &found,
        "removed",
        removed,
        &format!("{} of {gate} is as if it had never been asked for", key.display()),
    )
}

pub(crate) async fn unblock(unblock: &Reset, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let Reset { key, gate, as_stored, confirm } = unblock;
    confirm.can_ask()?;
    let Some(found) = of_gate(inspector, gate, key, as_stored, out).await? else { return Ok(false) };
    let blocked: Vec<Found> = found.into_iter().filter(is_blocked).collect();
    if blocked.is_empty() {
        let text = format!("{} is not blocked at {gate}", key.display());
        out.say(&json!({ "unblocked": 0, "redis_keys": [] }), &[vec![text.into()]])?;
        return Ok(false);
    }
    if !confirm.ask(&format!("Let {} pass at {gate} again, as far as its limit goes?", key.display()))? {
        return Ok(false);
    }
    for found in &blocked {
        inspector.block(found, Duration::ZERO).await?;
    }
    done(
        out,
        &blocked,
        "unblocked",
        blocked.len() as u64,
        &format!("{} is not blocked at {gate} any more", key.display()),
    )
}

fn is_blocked(found: &Found) -> bool {
    // What cannot be read is told by the attempt.
    found.usage.as_ref().map_or(true, |usage| usage.blocked_for.is_some())
}

/// Blocks what there is of the key, and what a service would make anew, also by another quota that was
/// ordered for it.
pub(crate) async fn block(block: &Block, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Block { key, gate, lasts, quota, as_stored, confirm } = block;
    confirm.can_ask()?;
    let inspector = Inspector::new(limiter)?;
    let found = state::find(&inspector, Some(gate), key, as_stored).await?.found;
    let quota = match (quota.quota(gate)?, found.first()) {
        (Some(quota), _) => quota,
        (None, Some(found)) => found.quota()?,
        (None, None) if as_stored.stored => {
            return Err(Failure::usage(state::nothing(&inspector, Some(gate), key, as_stored)));
        }
        (None, None) => of_others(&inspector, gate).await?,
    };
    let question = format!("Deny all to {} at {gate} for {}?", key.display(), human(*lasts));
    if !confirm.ask(&question)? {
        return Ok(false);
    }
    let mut redis_keys = BTreeSet::new();
    if !as_stored.stored {
        inspector.read_orders().await?;
        let (gate, key) = (limiter.try_gate(gate, quota)?, key.as_encoded_bytes());
        gate.block(key, *lasts).await?;
        redis_keys.insert(gate.redis_key(key)?);
    }
    for found in found {
        if !redis_keys.contains(&found.name.redis_key) {
            inspector.block(&found, *lasts).await?;
            redis_keys.insert(found.name.redis_key);
        }
    }
    let text = format!("{} is denied all at {gate} for {}", key.display(), human(*lasts));
    out.say(&json!({ "blocked": redis_keys.len(), "redis_keys": redis_keys }), &[vec![text.into()]])?;
    Ok(true)
}

/// A quota that has its state where the gate's other keys have theirs.
async fn of_others(inspector: &Inspector, gate: &str) -> Result<Quota, Failure> {
    let mut shapes: BTreeSet<Shape> = BTreeSet::new();
    let mut sample: Option<Name> = None;
    let mut scan = inspector.all(Some(gate));
    while let Some(page) = scan.next().await? {
        for name in page.names.into_iter().filter(|name| name.gate == gate) {
            shapes.insert(name.shape);
            sample.get_or_insert(name);
        }
    }
    let how = "say its quota, such as `--token-bucket 5 --rate 5/m`, or where it stands: --rules PATH";
    let Some(sample) = sample else {
        return Err(Failure::usage(format!(
            "nothing is stored of the gate {gate}, so that its algorithm is not known: {how}"
        )));
    };
    if shapes.len() > 1 {
        let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
        return Err(Failure::usage(format!(
            "the gate {gate} is stored as {}: {how}",
            shapes.join(" and as ")
        )));
    }
    let read = inspector.read(std::slice::from_ref(&sample)).await?;
    // It may have gone meanwhile.
    Ok(read.first().map_or_else(|| sample.shape.quota(1), Found::quota)?)
}

/// Overrides of the key go too: they name it.
pub(crate) async fn forget(forget: &Forget, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let Forget { key, as_stored, confirm } = forget;
    confirm.can_ask()?;
    let Sought { found, survey } = state::find(inspector, None, key, as_stored).await?;
    let written = state::written(inspector, key, as_stored)?;
    let orders = inspector.orders().await?.into_iter();
    let overrides: Vec<(String, String)> = orders
        .filter_map(|order| match order {
            Order::Override { gate, key, .. } if written.contains(&key) => Some((gate, key)),
            _ => None,
        })
        .collect();
    survey.notes().iter().for_each(|note| output::warn(note));
    if found.is_empty() && overrides.is_empty() {
        return nothing(inspector, None, key, as_stored, out);
    }
    let gates = found.iter().map(|found| &found.name.gate).chain(overrides.iter().map(|(gate, _)| gate));
    let gates: BTreeSet<&str> = gates.map(String::as_str).collect();
    let gates = gates.into_iter().collect::<Vec<_>>().join(", ");
    let (states, key) = (count(found.len(), "state"), key.display());
    let and_overrides = match overrides.len() {
        0 => String::new(),
        more => format!(" and {}", count(more, "override")),
    };
    if !confirm.ask(&format!("Remove {states}{and_overrides} of {key} (gates: {gates})?"))? {
        return Ok(false);
    }
    // An override would make state anew under the name that is to be forgotten.
    for (gate, written) in &overrides {
        inspector.end_override(gate, written).await?;
    }
    let removed = inspector.remove(&names(&found)).await?;
    let redis_keys: Vec<&str> = found.iter().map(|found| found.name.redis_key.as_str()).collect();
    let json = json!({ "removed": removed, "overrides_ended": overrides.len(), "redis_keys": redis_keys });
    let states = count(usize::try_from(removed).unwrap_or(usize::MAX), "state");
    out.say(&json, &[vec![format!("removed {states}{and_overrides} of {key} (gates: {gates})").into()]])?;
    Ok(true)
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The states of a key at a gate, which may be stored in several ways; `None` where there is none, which is said.
async fn of_gate(
    inspector: &Inspector,
    gate: &str,
    key: &OsStr,
    as_stored: &AsStored,
    out: Output,
) -> Result<Option<Vec<Found>>, Failure> {
    let Sought { found, .. } = state::find(inspector, Some(gate), key, as_stored).await?;
    if found.is_empty() {
        nothing(inspector, Some(gate), key, as_stored, out)?;
        return Ok(None);
    }
    Ok(Some(found))
}

fn nothing(
    inspector: &Inspector,
    gate: Option<&str>,
    key: &OsStr,
    as_stored: &AsStored,
    out: Output,
) -> Result<bool, Failure> {
    let text: Text = state::nothing(inspector, gate, key, as_stored).into();
    out.say(&json!({ "removed": 0, "redis_keys": [] }), &[vec![text]])?;
    Ok(false)
}

fn names(found: &[Found]) -> Vec<Name> {
    found.iter().map(|found| found.name.clone()).collect()
}

fn done(out: Output, found: &[Found], what: &str, count: u64, text: &str) -> Result<bool, Failure> {
    let redis_keys: Vec<&str> = found.iter().map(|found| found.name.redis_key.as_str()).collect();
    out.say(&json!({ what: count, "redis_keys": redis_keys }), &[vec![text.into()]])?;
    Ok(true)
}

//! `overrides`, and notes on overrides.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Limiter, Override, Switch as Mode};

use crate::failure::Failure;
use crate::gate_names::GateNames;
use crate::output::{Output, Text, Tone, table};
use crate::units::{human, us};

/// Lists the switches and overrides. Returns whether there are any.
pub(crate) async fn list(limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let (names, overrides) = (GateNames::load(None, out)?, limiter.control().overrides().await?);
    let rows = overrides.iter().filter_map(|entry| row(entry, names.shown(entry.gate())));
    let mut lines = table(&["gate", "key", "override", "ends in"], rows.collect());
    if overrides.is_empty() {
        lines = vec![vec!["no active switches or overrides".into()]];
    }
    let json: Vec<Value> = overrides.iter().filter_map(override_json).collect();
    out.print(&json!({ "overrides": json }), &lines)?;
    Ok(!overrides.is_empty())
}

/// Returns a note with the number of active overrides: of a gate or of all gates, and of keys in their stored
/// form or of all keys. `None` if there are none. If they cannot be read, the note tells so: another program can
/// have written their key, and the states are still shown.
pub(crate) async fn note(limiter: &Limiter, gate: Option<&str>, keys: Option<&[String]>) -> Option<String> {
    let overrides = match limiter.control().overrides().await {
        Ok(overrides) => overrides,
        Err(error) => return Some(format!("overrides not readable: {error}")),
    };
    let is_of_keys = |entry: &Override| match entry {
        Override::Quota { key, .. } => keys.is_none_or(|keys| keys.contains(key)),
        _ => true,
    };
    let is_selected = |entry: &&Override| gate.is_none_or(|gate| gate == entry.gate()) && is_of_keys(entry);
    let count = overrides.iter().filter(is_selected).count();
    (count > 0).then(|| format!("active overrides: {count}, see `tidegate overrides`"))
}

fn row(entry: &Override, gate: &str) -> Option<Vec<Text>> {
    let ends_text = |ends_in: &Option<Duration>| match ends_in {
        Some(left) => human(*left).into(),
        None => Text(Tone::Warn, "never".to_owned()),
    };
    match entry {
        Override::Switch { switch, ends_in, .. } => {
            let tone = if *switch == Mode::Closed { Tone::Bad } else { Tone::Warn };
            Some(vec![gate.into(), "-".into(), Text(tone, switch.to_string()), ends_text(ends_in)])
        }
        Override::Quota { key, quota, ends_in, .. } => {
            Some(vec![gate.into(), key.as_str().into(), quota.to_string().into(), ends_text(ends_in)])
        }
        _ => None,
    }
}

fn override_json(entry: &Override) -> Option<Value> {
    match entry {
        Override::Switch { gate, switch, ends_in, .. } => {
            Some(json!({ "gate": gate, "switch": switch.as_str(), "ends_in_us": ends_in.map(us) }))
        }
        Override::Quota { gate, key, quota, ends_in, .. } => Some(json!({
            "gate": gate,
            "written": key,
            "quota": quota.to_string(),
            "ends_in_us": ends_in.map(us),
        })),
        _ => None,
    }
}

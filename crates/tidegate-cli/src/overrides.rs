//! `switch`, `override` and `overrides`.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin::Inspector;
use tidegate::{Limiter, Override, Switch as Mode};

use crate::args::{self, Switch, SwitchTo};
use crate::failure::Failure;
use crate::output::{Output, Text, Tone, table};
use crate::units::human;

/// Sets or ends the switch of a gate. Returns false without confirmation.
pub(crate) async fn switch(switch: &Switch, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Switch { gate, to, duration, confirm } = switch;
    let (mode, question) = match to {
        SwitchTo::Open => (Some(Mode::Open), "Allow every check at"),
        SwitchTo::Closed => (Some(Mode::Closed), "Deny every check at"),
        SwitchTo::Shadow => (Some(Mode::Shadow), "Set shadow mode, which allows every check, at"),
        SwitchTo::Off => (None, "End the switch of"),
    };
    if mode.is_none() && duration.is_some() {
        return Err(Failure::usage("`off` ends a switch permanently: remove --for"));
    }
    if !confirm.prompt(&format!("{question} {gate}, in the whole fleet{}?", for_time(*duration)))? {
        return Ok(false);
    }
    match mode {
        Some(mode) => limiter.control().switch(gate, mode, *duration).await?,
        None => limiter.control().end_switch(gate).await?,
    }
    let word = mode.map_or("off", Mode::as_str);
    let text =
        format!("{gate} is switched {word}{}, applied by all processes within a second", for_time(*duration));
    out.print(
        &json!({ "gate": gate, "switch": word, "ends_in_us": duration.map(us) }),
        &[vec![text.into()]],
    )?;
    Ok(true)
}

/// Sets or ends the override of a key. Returns false without confirmation.
pub(crate) async fn set_override(
    args: &args::Override,
    limiter: &Limiter,
    out: Output,
) -> Result<bool, Failure> {
    let args::Override { key, gate, duration, confirm, .. } = args;
    let (name, key) = (key.display(), key.as_encoded_bytes());
    let quota = if args.end { None } else { Some(args.quota.required(gate)?) };
    let (question, done) = match &quota {
        Some(quota) => (
            format!("Give {name} at {gate} the quota {quota}{}, in the whole fleet?", for_time(*duration)),
            format!("{name} at {gate} has the quota {quota}{}", for_time(*duration)),
        ),
        None => (
            format!("Give {name} at {gate} the gate's own quota again, in the whole fleet?"),
            format!("{name} at {gate} has the gate's own quota"),
        ),
    };
    if !confirm.prompt(&question)? {
        return Ok(false);
    }
    match quota {
        Some(quota) => limiter.control().set_override(gate, key, quota, duration.unwrap_or_default()).await?,
        None => limiter.control().end_override(gate, key).await?,
    }
    let quota = quota.map(|quota| quota.to_string());
    let json = json!({ "gate": gate, "quota": quota, "ends_in_us": duration.map(us) });
    out.print(&json, &[vec![(done + ", applied by all processes within a second").into()]])?;
    Ok(true)
}

/// Lists the switches and overrides. Returns whether there are any.
pub(crate) async fn list(limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let overrides = limiter.control().overrides().await?;
    let mut lines =
        table(&["gate", "key", "override", "ends in"], overrides.iter().filter_map(row).collect());
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
pub(crate) async fn note(
    inspector: &Inspector,
    gate: Option<&str>,
    keys: Option<&[String]>,
) -> Option<String> {
    let overrides = match inspector.overrides().await {
        Ok(overrides) => overrides,
        Err(error) => return Some(format!("overrides not readable: {error}")),
    };
    let is_selected = |entry: &&Override| match entry {
        Override::Switch { gate: of, .. } => gate.is_none_or(|gate| gate == of),
        Override::Quota { gate: of, key, .. } => {
            gate.is_none_or(|gate| gate == of) && keys.is_none_or(|keys| keys.contains(key))
        }
        _ => false,
    };
    let count = overrides.iter().filter(is_selected).count();
    (count > 0).then(|| format!("active overrides: {count}, see `tidegate overrides`"))
}

fn row(entry: &Override) -> Option<Vec<Text>> {
    let ends_text = |ends_in: &Option<Duration>| match ends_in {
        Some(left) => human(*left).into(),
        None => Text(Tone::Warn, "never".to_owned()),
    };
    match entry {
        Override::Switch { gate, switch, ends_in, .. } => {
            let tone = if *switch == Mode::Closed { Tone::Bad } else { Tone::Warn };
            Some(vec![gate.as_str().into(), "-".into(), Text(tone, switch.to_string()), ends_text(ends_in)])
        }
        Override::Quota { gate, key, quota, ends_in, .. } => Some(vec![
            gate.as_str().into(),
            key.as_str().into(),
            quota.to_string().into(),
            ends_text(ends_in),
        ]),
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

fn for_time(duration: Option<Duration>) -> String {
    duration.map(|duration| format!(" for {}", human(duration))).unwrap_or_default()
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

//! `switch`, `override` and `overrides`.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin::Inspector;
use tidegate::{Limiter, Override, Switch as Mode};
use tidegate_rules::Rules;

use crate::args::{self, Force, Switch, SwitchTo};
use crate::failure::Failure;
use crate::known_gates;
use crate::output::{Output, Text, Tone, table};
use crate::quota::find_rule;
use crate::stored_quota;
use crate::units::human;

/// Sets or ends the switch of a gate. Returns false without confirmation.
pub(crate) async fn switch(switch: &Switch, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Switch { gate, to, duration, rules, force, confirm } = switch;
    let (mode, question) = match to {
        SwitchTo::Open => (Some(Mode::Open), "Allow every check at"),
        SwitchTo::Closed => (Some(Mode::Closed), "Deny every check at"),
        SwitchTo::Shadow => (Some(Mode::Shadow), "Set shadow mode, which allows every check, at"),
        SwitchTo::Clear => (None, "End the switch of"),
        SwitchTo::Off => {
            return Err(Failure::usage(format!(
                "`off` can mean two things: `switch {gate} clear` ends the switch, so that {gate} follows its own \
                 quota again; `switch {gate} open` turns the limit off"
            )));
        }
    };
    if mode.is_none() && duration.is_some() {
        return Err(Failure::usage("`clear` ends a switch permanently: remove --for"));
    }
    confirm.can_confirm()?;
    let in_rules = match rules {
        Some(path) => Some(find_rule(&Rules::load(path).map_err(Failure::ConfigErrors)?, gate)?.gate_name()),
        None => None,
    };
    let gate = in_rules.as_ref().unwrap_or(gate);
    known_gates::ensure_valid_or_rule(limiter, gate)?;
    let inspector = Inspector::new(limiter)?;
    let overrides = inspector.overrides().await?;
    let instances = match mode {
        Some(_) => followers(&inspector, &overrides, gate, in_rules.is_some(), *force).await?,
        None => {
            ensure_switched(&overrides, gate, *force)?;
            inspector.instances().await?
        }
    };
    if !confirm.prompt(&format!("{question} {gate}, in the whole fleet{}?", for_time(*duration)))? {
        return Ok(false);
    }
    let text = match mode {
        Some(mode) => {
            limiter.control().switch(gate, mode, *duration).await?;
            format!("{gate} is switched {mode}{}", for_time(*duration))
        }
        None => {
            limiter.control().end_switch(gate).await?;
            format!("{gate} follows its own quota again")
        }
    };
    let json = json!({
        "gate": gate,
        "switch": mode.map_or("clear", Mode::as_str),
        "ends_in_us": duration.map(us),
        "instances": instances,
    });
    let text = format!("{text}; {}", known_gates::followers(instances));
    out.print(&json, &[vec![text.into()]])?;
    Ok(true)
}

/// Sets or ends the override of a key. Returns false without confirmation.
pub(crate) async fn set_override(
    args: &args::Override,
    limiter: &Limiter,
    out: Output,
) -> Result<bool, Failure> {
    let args::Override { key, gate, duration, force, confirm, .. } = args;
    confirm.can_confirm()?;
    let named = args.quota.gate(gate)?;
    let gate = &named.name;
    let (name, key) = (key.display(), key.as_encoded_bytes());
    let quota = if args.end { None } else { Some(named.required_quota()?) };
    known_gates::ensure_valid_or_rule(limiter, gate)?;
    let inspector = Inspector::new(limiter)?;
    let overrides = inspector.overrides().await?;
    let instances = match quota {
        Some(quota) => {
            let instances = followers(&inspector, &overrides, gate, named.is_in_rules, *force).await?;
            if !force.force {
                stored_quota::ensure_same_kind(&inspector, gate, &quota).await?;
            }
            instances
        }
        None => {
            ensure_overridden(&inspector, &overrides, gate, key, *force)?;
            inspector.instances().await?
        }
    };
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
    let json =
        json!({ "gate": gate, "quota": quota, "ends_in_us": duration.map(us), "instances": instances });
    let text = format!("{done}; {}", known_gates::followers(instances));
    out.print(&json, &[vec![text.into()]])?;
    Ok(true)
}

/// Returns the number of instances that will follow a change of the gate. Without `--force`, fails if there is
/// none, or if the gate seems to be a mistake.
async fn followers(
    inspector: &Inspector,
    overrides: &[Override],
    gate: &str,
    is_in_rules: bool,
    Force { force }: Force,
) -> Result<u64, Failure> {
    if force {
        return Ok(inspector.instances().await?);
    }
    let instances = known_gates::ensure_instances(inspector).await?;
    if !is_in_rules {
        known_gates::ensure_known(inspector, overrides, gate).await?;
    }
    Ok(instances)
}

/// Fails if the gate is not switched.
fn ensure_switched(overrides: &[Override], gate: &str, Force { force }: Force) -> Result<(), Failure> {
    let switched = overrides.iter().filter(|entry| matches!(entry, Override::Switch { .. }));
    let switched = switched.map(known_gates::gate_of);
    if force || switched.clone().any(|other| other == gate) {
        return Ok(());
    }
    let exists = match switched.clone().next() {
        None => "no gate is switched".to_owned(),
        Some(_) => format!("switched gates: {}", known_gates::list(switched.clone())),
    };
    let near = known_gates::did_you_mean(gate, switched);
    Err(Failure::NoEffect(format!("{gate} is not switched{near}; nothing changed\n{exists}")))
}

/// Fails if the key has no override at the gate.
fn ensure_overridden(
    inspector: &Inspector,
    overrides: &[Override],
    gate: &str,
    key: &[u8],
    Force { force }: Force,
) -> Result<(), Failure> {
    let written = inspector.stored_forms(key);
    let is_of_key = |entry: &&Override| matches!(entry, Override::Quota { key, .. } if written.contains(key));
    let gates = overrides.iter().filter(is_of_key).map(known_gates::gate_of);
    if force || gates.clone().any(|other| other == gate) {
        return Ok(());
    }
    let exists = match gates.clone().next() {
        None => "the key has no override at any gate: see `tidegate overrides`".to_owned(),
        Some(_) => format!("the key has overrides at: {}", known_gates::list(gates.clone())),
    };
    let near = known_gates::did_you_mean(gate, gates);
    Err(Failure::NoEffect(format!("no override of this key at {gate}{near}; nothing changed\n{exists}")))
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

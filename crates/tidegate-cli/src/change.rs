//! The commands that change something: `reset`, `block`, `unblock`, `forget`, `switch` and `override`.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin::{
    Action, Author, Change, ChangedGate, Changes, CheckedChange, Effect, GivenKey, Inspector, KeyStates,
    Refusal,
};
use tidegate::{Limiter, Override, Switch as Mode};

use crate::args::{self, Block, Changing, Forget, Reset, Switch, SwitchTo};
use crate::failure::Failure;
use crate::gate_names::GateNames;
use crate::output::{self, Output};
use crate::quota::{HOW_TO_SPECIFY, required_quota};
use crate::serve::stop_signal;
use crate::units::{counted, human, us};
use crate::{confirm, given_key};

/// A change that waits for its confirmation.
struct Pending<'p> {
    changes: Changes,
    checked: CheckedChange,
    changing: &'p Changing,
    out: Output,
}

impl<'p> Pending<'p> {
    async fn check(
        changing: &'p Changing,
        limiter: &Limiter,
        change: Change,
        out: Output,
    ) -> Result<Self, Failure> {
        let changes = Changes::new(limiter).max_search(changing.max_search);
        let checked = changes.check(change).await.map_err(refused)?;
        Ok(Self { changes, checked, changing, out })
    }

    /// Adds what helps if the key is not found as it is given.
    fn with_hint(mut self, hint: &str) -> Self {
        let is_absent = self.checked.states.as_ref().is_some_and(|states| states.names().is_empty());
        if let Some(text) = self.checked.no_effect.as_mut().filter(|_| is_absent) {
            text.push_str(hint);
        }
        self
    }

    /// Makes the change once it is confirmed. Returns `None` without confirmation. If there is nothing to change, neither
    /// asks nor writes. A signal to end ends the search of the change, so that the change is recorded.
    async fn make(self, question: &str) -> Result<Option<Effect>, Failure> {
        let Self { changes, checked, changing, out } = self;
        match &checked.no_effect {
            Some(text) if !checked.change.force => {
                return Ok(Some(Effect { result: text.clone(), ..Effect::default() }));
            }
            _ if !changing.prompt(question)? => return Ok(None),
            _ => {}
        }
        let author = changing.author();
        let mut applying = pin!(changes.apply(checked, &author));
        let made = tokio::select! {
            made = &mut applying => made,
            () = stop_signal()? => {
                changes.end_searches();
                applying.await
            }
        };
        if let Some(error) = made.audit_error {
            output::warn(out.json, &format!("the audit log has no entry of this change: {error}"));
        }
        let effect = made.effect?;
        if let Some(why) = &effect.incomplete {
            output::warn(out.json, why);
        }
        Ok(Some(effect))
    }
}

/// Prints the effect, with `text` if something has changed. Returns whether it has.
fn print(out: Output, effect: Effect, json: &Value, text: String) -> Result<bool, Failure> {
    let text = if effect.has_changed { text } else { effect.result };
    out.print(json, &[vec![text.into()]])?;
    Ok(effect.has_changed)
}

/// Returns the failure for a change that is not made, with the option that helps.
fn refused(refusal: Refusal) -> Failure {
    match &refusal {
        Refusal::Failed(error) => error.clone().into(),
        Refusal::UnknownGate(_) => Failure::NoEffect(format!(
            "{refusal}\nfor the name or path of a rule, add --rules PATH; for a gate that has no state yet, add --force"
        )),
        Refusal::NoEffect(_) => Failure::NoEffect(format!("{refusal}\nto change it anyway, add --force")),
        Refusal::NeedsQuota(_) => Failure::usage(format!("{refusal}: {HOW_TO_SPECIFY}")),
        Refusal::Impossible(_) => Failure::usage(refusal.to_string()),
        Refusal::Unsearched(_) => Failure::NoEffect(format!("{refusal}: increase --max-search")),
    }
}

impl Changing {
    fn author(&self) -> Author {
        let login = || ["USER", "LOGNAME", "USERNAME"].iter().find_map(|name| std::env::var(name).ok());
        let name = self.author.clone().or_else(login).filter(|name| !name.is_empty());
        Author {
            name: name.unwrap_or_else(|| "cli".to_owned()),
            role: "cli".to_owned(),
            reason: self.reason.clone(),
        }
    }
}

/// Removes the state of a key at a gate. Returns false if there is none, or without confirmation.
pub(crate) async fn reset(args: &Reset, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let action = |key| Action::Reset { key };
    let (pending, key, gate) = check_key(args, action, limiter, out).await?;
    let Some(effect) = pending.make(&format!("Reset {key} at {gate}?")).await? else { return Ok(false) };
    let json = json!({ "removed": effect.removed, "redis_keys": effect.redis_keys });
    print(out, effect, &json, format!("{key} at {gate} is reset"))
}

pub(crate) async fn unblock(args: &Reset, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let action = |key| Action::Unblock { key };
    let (pending, key, gate) = check_key(args, action, limiter, out).await?;
    let Some(effect) = pending.make(&format!("Unblock {key} at {gate}?")).await? else { return Ok(false) };
    let Effect { redis_keys, removed, .. } = &effect;
    let text = match redis_keys.is_empty() {
        false => format!("{key} is no longer blocked at {gate}"),
        true => format!("{key} is not blocked at {gate}; its counted denials are removed"),
    };
    let json = json!({ "unblocked": redis_keys.len(), "counts_removed": removed, "redis_keys": redis_keys });
    print(out, effect, &json, text)
}

/// Checks a change of a key at a gate. Returns the key and the name of the gate beside it.
async fn check_key<'a>(
    args: &'a Reset,
    action: impl FnOnce(GivenKey) -> Action,
    limiter: &Limiter,
    out: Output,
) -> Result<(Pending<'a>, GivenKey, String), Failure> {
    let Reset { key, gate, rules, as_stored, changing } = args;
    changing.can_confirm()?;
    let (gate, hint) = (rules.names(out)?.find(gate, limiter)?, given_key::hint(key, as_stored));
    let (key, name) = (as_stored.key(key)?, gate.to_string());
    let change = Change { gate, action: action(key.clone()), force: false };
    let pending = Pending::check(changing, limiter, change, out).await?;
    Ok((pending.with_hint(hint), key, name))
}

/// Blocks the existing states of the key, and the state that a service would create for it.
pub(crate) async fn block(block: &Block, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Block { key, gate, duration, quota, as_stored, force, changing } = block;
    changing.can_confirm()?;
    let (gate, quota) = quota.gate(gate, limiter, out)?;
    let (key, name, lasts) = (as_stored.key(key)?, gate.to_string(), *duration);
    let action = Action::Block { key: key.clone(), lasts, quota };
    let change = Change { gate, action, force: force.force };
    let pending = Pending::check(changing, limiter, change, out).await?;
    let question = format!("Block {key} at {name} for {}?", human(lasts));
    let Some(effect) = pending.make(&question).await? else { return Ok(false) };
    let redis_keys = &effect.redis_keys;
    let json = json!({ "blocked": redis_keys.len(), "redis_keys": redis_keys });
    print(out, effect, &json, format!("{key} is blocked at {name} for {}", human(lasts)))
}

/// Removes the state of a key at all gates, and its overrides, which contain the key.
pub(crate) async fn forget(forget: &Forget, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Forget { key, as_stored, changing } = forget;
    changing.can_confirm()?;
    let (names, hint) = (GateNames::load(None, out)?, given_key::hint(key, as_stored));
    let key = as_stored.key(key)?;
    let (gate, action) = (ChangedGate::default(), Action::Forget { key: key.clone() });
    let change = Change { gate, action, force: false };
    let pending = Pending::check(changing, limiter, change, out).await?.with_hint(hint);
    let CheckedChange { states, ended_overrides, .. } = &pending.checked;
    let states = states.as_ref().map(KeyStates::names).unwrap_or_default();
    given_key::notes(&pending.checked).iter().for_each(|note| output::warn(out.json, note));
    let gates = states.iter().map(|name| &*name.gate).chain(ended_overrides.iter().map(Override::gate));
    let gates = gates.map(|gate| names.shown(gate)).collect::<BTreeSet<_>>();
    let gates = gates.into_iter().collect::<Vec<_>>().join(", ");
    let overrides_ended = ended_overrides.len();
    let and_overrides = match overrides_ended {
        0 => String::new(),
        number => format!(" and {}", counted(number as u64, "override")),
    };
    let found = counted(states.len() as u64, "state");
    let question = format!("Remove {found}{and_overrides} of {key} (gates: {gates})?");
    let Some(effect) = pending.make(&question).await? else { return Ok(false) };
    let Effect { removed, redis_keys, .. } = &effect;
    let json = json!({ "removed": removed, "overrides_ended": overrides_ended, "redis_keys": redis_keys });
    // The holds of a state are a Redis key of their own.
    let removed = counted((*removed).min(states.len() as u64), "state");
    print(out, effect, &json, format!("removed {removed}{and_overrides} of {key} (gates: {gates})"))
}

/// Sets or ends the switch of a gate. Returns false without confirmation.
pub(crate) async fn switch(switch: &Switch, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Switch { gate, to, duration, rules, force, changing } = switch;
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
    changing.can_confirm()?;
    let gate = rules.names(out)?.find(gate, limiter)?;
    let (name, lasts) = (gate.to_string(), for_time(*duration));
    let (action, text) = match mode {
        Some(to) => (Action::Switch { to, lasts: *duration }, format!("{name} is switched {to}{lasts}")),
        None => (Action::EndSwitch, format!("{name} follows its own quota again")),
    };
    let change = FleetChange {
        question: format!("{question} {name}, in the whole fleet{lasts}?"),
        json: json!({
            "gate": gate.name,
            "switch": mode.map_or("clear", Mode::as_str),
            "ends_in_us": duration.map(us),
        }),
        begins: mode.is_some(),
        text,
    };
    change.make(Change { gate, action, force: force.force }, changing, limiter, out).await
}

/// Sets or ends the override of a key. Returns false without confirmation.
pub(crate) async fn set_override(
    args: &args::Override,
    limiter: &Limiter,
    out: Output,
) -> Result<bool, Failure> {
    let args::Override { key, gate, duration, force, changing, .. } = args;
    changing.can_confirm()?;
    let (gate, quota) = args.quota.gate(gate, limiter, out)?;
    let (key, name, lasts) = (args::AsStored::default().key(key)?, gate.to_string(), for_time(*duration));
    let quota = if args.end { None } else { Some(required_quota(&gate, quota)?) };
    let (action, question, text) = match quota {
        Some(quota) => (
            Action::Override { key: key.clone(), quota, lasts: duration.unwrap_or_default() },
            format!("Give {key} at {name} the quota {quota}{lasts}, in the whole fleet?"),
            format!("{key} at {name} has the quota {quota}{lasts}"),
        ),
        None => (
            Action::EndOverride { key: key.clone() },
            format!("Give {key} at {name} the gate's own quota again, in the whole fleet?"),
            format!("{key} at {name} has the gate's own quota"),
        ),
    };
    let change = FleetChange {
        question,
        text,
        begins: quota.is_some(),
        json: json!({
            "gate": gate.name,
            "quota": quota.map(|quota| quota.to_string()),
            "ends_in_us": duration.map(us),
        }),
    };
    change.make(Change { gate, action, force: force.force }, changing, limiter, out).await
}

/// What the program asks before a change of the whole fleet, and prints after it.
struct FleetChange {
    question: String,
    text: String,
    json: Value,
    /// Whether the change begins something. Then it needs a live instance, which follows it.
    begins: bool,
}

impl FleetChange {
    /// Makes the change. Without `--force`, fails if it would have no effect: this is probably a mistake.
    async fn make(
        self,
        change: Change,
        changing: &Changing,
        limiter: &Limiter,
        out: Output,
    ) -> Result<bool, Failure> {
        let Self { question, text, mut json, begins } = self;
        let (inspector, force) = (Inspector::new(limiter)?, change.force);
        let instances = match begins && !force {
            true => confirm::ensure_any(&inspector).await?,
            false => inspector.instances().await?,
        };
        let pending = Pending::check(changing, limiter, change, out).await?;
        match &pending.checked.no_effect {
            Some(text) if !force => return Err(Failure::NoEffect(text.clone())),
            _ => {}
        }
        let Some(_) = pending.make(&question).await? else { return Ok(false) };
        json["instances"] = instances.into();
        let text = format!("{text}; {}", confirm::followers(instances));
        out.print(&json, &[vec![text.into()]])?;
        Ok(true)
    }
}

fn for_time(duration: Option<Duration>) -> String {
    duration.map(|duration| format!(" for {}", human(duration))).unwrap_or_default()
}

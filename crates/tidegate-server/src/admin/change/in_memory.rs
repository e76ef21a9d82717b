//! Changes of a limiter in memory, whose gates are those of the rules: it has no names to search.

use std::borrow::Cow;

use http::StatusCode;
use tidegate::admin::decoded_key;
use tidegate::{Gate, Override};

use super::effect::Effect;
use super::failed::Failed;
use super::kinds::{Change, Key, human};
use crate::admin::problem::Problem;
use crate::admin::state::AdminState;

pub(super) async fn apply(
    state: &AdminState,
    gate: &str,
    change: Change,
    force: bool,
) -> Result<Effect, Failed> {
    let control = state.limiter.control();
    if !force && !state.has_rule(gate) {
        return Err(Failed::no_effect(format!(
            "no rule of this service has the gate {gate}; nothing changed. To change it anyway, set `force` to `true`"
        )));
    }
    Ok(match change {
        Change::Block { key, duration, .. } => {
            gate_of(state, gate)?.block(bytes(&key)?, duration).await?;
            Effect::changed(format!("blocked for {}", human(duration)))
        }
        Change::Unblock { key } => {
            gate_of(state, gate)?.unblock(bytes(&key)?).await?;
            Effect::changed("no longer blocked")
        }
        Change::Reset { key } => {
            gate_of(state, gate)?.reset(bytes(&key)?).await?;
            Effect::changed("reset")
        }
        Change::Override { key, quota, duration } => {
            control.set_override(gate, bytes(&key)?, quota, duration).await?;
            Effect::changed(format!("has the quota {quota} for {}", human(duration)))
        }
        Change::EndOverride { key } => {
            let before = control.overrides().await?.len();
            control.end_override(gate, bytes(&key)?).await?;
            match control.overrides().await?.len() < before {
                true => Effect::changed("has the gate's own quota again"),
                false => Effect::nothing("the key has no override"),
            }
        }
        Change::Switch { to, duration } => {
            control.switch(gate, to, duration).await?;
            Effect::changed(format!("switched {to}"))
        }
        Change::EndSwitch => {
            let overrides = control.overrides().await?;
            let is_switch =
                |entry: &Override| matches!(entry, Override::Switch { gate: of, .. } if of == gate);
            control.end_switch(gate).await?;
            match overrides.iter().any(is_switch) {
                true => Effect::changed("follows its own quota again"),
                false => Effect::nothing("the gate was not switched"),
            }
        }
    })
}

/// Returns the gate of a rule.
fn gate_of(state: &AdminState, gate: &str) -> Result<Gate, Failed> {
    let Some(quota) = state.rule_quota(gate) else {
        return Err(Failed::no_effect(format!("no rule with a quota has the gate {gate}; nothing changed")));
    };
    Ok(state.limiter.try_gate(gate, quota)?)
}

/// Returns the key itself. A stored form is that of an override, which is listed as Redis would show it.
fn bytes(key: &Key) -> Result<Cow<'_, [u8]>, Failed> {
    match key {
        Key::Clear(key) => Ok(Cow::Borrowed(key.as_bytes())),
        Key::Stored(written) => decoded_key(written).map(Cow::Owned).ok_or_else(|| {
            let text = "`key` is no stored form of a key: write % only before two hexadecimal digits, or give the key \
                        itself without `stored`";
            Failed::Before(Problem::new(StatusCode::BAD_REQUEST, text))
        }),
    }
}

//! Makes the changes of operators, and reads what the audit log has of them.

use std::time::Duration;

use tidegate::Error;
use tidegate::admin::{AuditEntry, Found, Inspector, Name};
use tidegate_rules::Rule;

use super::change::{Change, Effect};
use super::key_search::KeySearch;
use super::keys::{Event, Key};
use super::words;
use crate::admin::{AdminState, AuditAction, Identity};

/// An entry of the audit log.
pub(super) struct Entry {
    pub(super) key: String,
    event: Event,
}

impl Entry {
    fn new(entry: AuditEntry) -> Self {
        let record = entry.record;
        let what = [&*record.verb, &record.gate, &record.detail, &record.result];
        let what = what.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let event = Event {
            when: words::date_and_time(entry.unix_ms / 1_000),
            who: format!("{} ({})", record.operator, record.role),
            what,
            reason: record.reason,
        };
        Self { key: record.key, event }
    }

    pub(super) fn event(&self) -> Event {
        self.event.clone()
    }
}

/// Returns the newest entries of the audit log, or why they cannot be read.
pub(super) async fn audit_entries(inspector: &Inspector, count: usize) -> Result<Vec<Entry>, String> {
    let entries = inspector.audit_log(count).await;
    let entries = entries.map_err(|error| format!("The audit log cannot be read: {error}"))?;
    Ok(entries.into_iter().map(Entry::new).collect())
}

/// Makes a change, and records it with its result. Returns the result.
pub(super) async fn apply(
    state: &AdminState,
    identity: &Identity,
    change: &Change,
) -> Result<String, String> {
    let made = make(state, change).await;
    let action = AuditAction {
        verb: change.action.as_str(),
        gate: change.gate.clone(),
        key: change.effect.key().and_then(|key| key.written.first().cloned()).unwrap_or_default(),
        detail: change.effect.detail(),
        reason: change.reason.clone(),
    };
    let result = made.as_ref().map_or_else(|error| format!("failed: {error}"), Clone::clone);
    state.audit.record(identity, action, &result).await;
    made
}

async fn make(state: &AdminState, change: &Change) -> Result<String, String> {
    let (control, gate) = (state.limiter.control(), &*change.gate);
    let text = |error: Error| error.to_string();
    match &change.effect {
        Effect::Switch { switch, lasts } => control.switch(gate, *switch, *lasts).await.map_err(text)?,
        Effect::EndSwitch => control.end_switch(gate).await.map_err(text)?,
        Effect::Override { key, quota, lasts } => {
            let bytes =
                key.bytes.as_deref().ok_or("only the hash of the key is stored: search the key itself")?;
            control.set_override(gate, bytes, *quota, *lasts).await.map_err(text)?;
        }
        Effect::EndOverride { key } => {
            let inspector = inspector(state)?;
            for written in &key.written {
                inspector.end_override(gate, written).await.map_err(text)?;
            }
        }
        Effect::Block { key, lasts } => return block(state, gate, key, *lasts).await,
        Effect::Unblock { key } => {
            let (inspector, found) = (inspector(state)?, states(state, gate, key).await?);
            let names: Vec<Name> = found.iter().map(|found| found.name.clone()).collect();
            // The counts first: a denial after the block would otherwise be added to the denials before it.
            for name in &names {
                inspector.remove_denials(name).await.map_err(text)?;
            }
            let blocked =
                |found: &&Found| found.usage.as_ref().map_or(true, |usage| usage.blocked_for.is_some());
            for found in found.iter().filter(blocked) {
                inspector.block(found, Duration::ZERO).await.map_err(text)?;
            }
        }
        Effect::Reset { key } => {
            let names: Vec<Name> =
                states(state, gate, key).await?.into_iter().map(|found| found.name).collect();
            inspector(state)?.remove(&names).await.map_err(text)?;
        }
    }
    Ok("done".to_owned())
}

fn inspector(state: &AdminState) -> Result<&Inspector, String> {
    state.inspector.as_ref().ok_or_else(|| "this service counts in its own memory".to_owned())
}

/// Returns the states of a key at a gate.
async fn states(state: &AdminState, gate: &str, key: &Key) -> Result<Vec<Found>, String> {
    let (inspector, rules) = (inspector(state)?, state.service.rules());
    let search = KeySearch::new(inspector, &rules, key.bytes.as_deref(), &key.written).await;
    let search = search.map_err(|error| error.to_string())?;
    Ok(search.found.into_iter().filter(|found| found.name.gate == gate).collect())
}

/// Blocks the states of a key, and the state that a service would create for it by the rules.
async fn block(state: &AdminState, gate: &str, key: &Key, lasts: Duration) -> Result<String, String> {
    let (inspector, found) = (inspector(state)?, states(state, gate, key).await?);
    let text = |error: Error| error.to_string();
    let rules = state.service.rules();
    let of_rules = rules.rules().iter().find(|rule| rule.gate_name() == gate).and_then(Rule::quota);
    let stored = || found.first().and_then(|found| found.quota().ok());
    let mut blocked = Vec::new();
    if let (Some(quota), Some(bytes)) = (of_rules.or_else(stored), &key.bytes) {
        inspector.read_overrides().await.map_err(text)?;
        let gate = state.limiter.try_gate(gate, quota).map_err(text)?;
        gate.block(&**bytes, lasts).await.map_err(text)?;
        blocked.push(gate.redis_key(&**bytes).map_err(text)?);
    }
    for found in found {
        if !blocked.contains(&found.name.redis_key) {
            inspector.block(&found, lasts).await.map_err(text)?;
            blocked.push(found.name.redis_key);
        }
    }
    match blocked.is_empty() {
        true => Err(format!(
            "no rule of this process defines the gate `{gate}`, and the key has no state there, so its algorithm is \
             unknown: use `tidegate block` with the quota"
        )),
        false => Ok("done".to_owned()),
    }
}

/// Returns how many instances will follow a change.
pub(super) async fn followers(inspector: &Inspector) -> String {
    match inspector.instances().await {
        Ok(0) => "No live instance is counted: nothing may follow this change.".to_owned(),
        Ok(1) => "1 live instance applies it within a second.".to_owned(),
        Ok(instances) => format!("{instances} live instances apply it within a second."),
        Err(error) => format!("The live instances cannot be counted: {error}."),
    }
}

//! What the audit log has of the changes of a key, and the instances that follow a change.

use tidegate::admin::{AuditEntry, Inspector};

use super::keys::Event;
use super::words;
use crate::admin::AdminState;

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
pub(super) async fn audit_entries(state: &AdminState, count: usize) -> Result<Vec<Entry>, String> {
    let entries = state.audit.entries(count).await;
    let entries = entries.map_err(|error| format!("The audit log cannot be read: {error}"))?;
    Ok(entries.into_iter().map(Entry::new).collect())
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

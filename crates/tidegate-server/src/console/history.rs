//! What the audit log has of the changes of a key, and the instances that follow a change.

use tidegate::admin::{AuditEntry, AuditRecord, Inspector};

use super::words;
use crate::admin::AdminState;

/// The entries of the audit log that are read.
const MAX_AUDIT_ENTRIES: usize = 1_000;

/// An entry of the audit log.
pub(super) struct Entry {
    unix_ms: u64,
    pub(super) record: AuditRecord,
}

/// An entry of the audit log, in words.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) when: String,
    pub(super) who: String,
    pub(super) what: String,
    pub(super) reason: String,
}

impl Entry {
    fn new(entry: AuditEntry) -> Self {
        Self { unix_ms: entry.unix_ms, record: entry.record }
    }

    pub(super) fn event(&self) -> Event {
        let record = &self.record;
        let what = [&*record.verb, &record.gate, &record.detail, &record.result];
        let what = what.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        Event {
            when: words::date_and_time(self.unix_ms / 1_000),
            who: format!("{} ({})", record.operator, record.role),
            what,
            reason: record.reason.clone(),
        }
    }
}

/// Returns the change that made the switch of a gate, or the override of one of its keys. `entries` are the newest first.
pub(super) fn origin_of<'e>(entries: &'e [Entry], gate: &str, key: Option<&str>) -> Option<&'e AuditRecord> {
    let [begins, ends] = if key.is_some() { ["override", "end_override"] } else { ["switch", "end_switch"] };
    let records = entries.iter().map(|entry| &entry.record);
    let mut of_gate = records.filter(|record| {
        let is_of_key = key.is_none_or(|key| record.key == key);
        record.gate == gate && is_of_key && !record.result.starts_with("failed")
    });
    // After the end of a change in the log, a program without a log has made this one.
    of_gate.find(|record| record.verb == begins || record.verb == ends).filter(|record| record.verb == begins)
}

/// Returns the newest entries of the audit log, or why they cannot be read.
pub(super) async fn audit_entries(state: &AdminState) -> Result<Vec<Entry>, String> {
    let entries = state.audit.entries(MAX_AUDIT_ENTRIES).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(verb: &str, gate: &str, key: &str, result: &str) -> Entry {
        let [verb, gate, key, result] = [verb, gate, key, result].map(str::to_owned);
        let reason = format!("{verb} {gate} {key}");
        Entry {
            unix_ms: 0,
            record: AuditRecord { verb, gate, key, result, reason, ..AuditRecord::default() },
        }
    }

    #[test]
    fn origin_of_an_override_is_the_newest_change_that_made_it() {
        let log = [
            entry("switch", "a", "", "failed: no Redis"),
            entry("end_override", "a", "bob", "ended"),
            entry("switch", "a", "", "switched closed"),
            entry("override", "a", "bob", "has a quota"),
            entry("override", "a", "ada", "has a quota"),
        ];
        let reason = |gate, key| origin_of(&log, gate, key).map(|record| &*record.reason);
        assert_eq!(reason("a", None), Some("switch a "));
        assert_eq!(reason("a", Some("ada")), Some("override a ada"));
        assert_eq!((reason("a", Some("bob")), reason("b", None)), (None, None));
    }
}

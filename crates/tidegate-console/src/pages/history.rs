//! What the audit log has of the changes of a key, and the instances that follow a change.

use std::time::Duration;

use tidegate::Ban;
use tidegate::admin::{AuditEntry, AuditRecord, Inspector, human};

use super::catalog::Catalog;
use super::display;
use crate::audit::{AuditLog, now_ms};

/// The entries of the audit log that are read.
const MAX_AUDIT_ENTRIES: usize = 1_000;
/// The maximum difference between the end of a block and the end that its entry in the audit log leads to: the clocks of
/// Redis and of this machine can differ.
const MAX_DIFFERENCE_MS: u64 = 60_000;

/// An entry of the audit log, in words.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) when: String,
    pub(super) who: String,
    pub(super) what: String,
    pub(super) reason: String,
}

impl Event {
    pub(super) fn new(entry: &AuditEntry, catalog: &Catalog) -> Self {
        let record = &entry.record;
        let what = [&*record.verb, catalog.shown(&record.gate), &record.detail, &record.result];
        let what = what.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        Self {
            when: display::date_and_time(entry.unix_ms / 1_000),
            who: format!("{} ({})", record.operator, record.role),
            what,
            reason: record.reason.clone(),
        }
    }
}

/// Returns the change that made the switch of a gate, or the override of one of its keys. `entries` are the newest first.
pub(super) fn origin_of<'e>(
    entries: &'e [AuditEntry],
    gate: &str,
    key: Option<&str>,
) -> Option<&'e AuditRecord> {
    let [begins, ends] = if key.is_some() { ["override", "end_override"] } else { ["switch", "end_switch"] };
    let records = entries.iter().map(|entry| &entry.record);
    let mut of_gate = records.filter(|record| {
        let is_of_key = key.is_none_or(|key| record.key == key);
        // A key is forgotten at all gates.
        let is_of_gate = record.gate == gate || (key.is_some() && record.verb == "forget");
        is_of_gate && is_of_key && !record.result.starts_with("failed")
    });
    // After the end of a change in the log, a program without a log has made this one.
    let newest = of_gate.find(|record| [begins, ends, "forget"].contains(&&*record.verb));
    newest.filter(|record| record.verb == begins)
}

/// Returns who or what has blocked a key for `left` more, in a sentence, as far as the audit log and the rule's ban tell. Redis
/// stores only the end of a block. `entries` are the newest first; `None` if they cannot be read.
pub(super) fn blocked_by(
    entries: Option<&[AuditEntry]>,
    (gate, key): (&str, &str),
    left: Duration,
    ban: Option<Ban>,
) -> Option<String> {
    let entries = entries?;
    let ends_ms = now_ms().saturating_add(left.as_millis() as u64);
    let is_this_block = |entry: &&AuditEntry| {
        let AuditEntry { unix_ms, record } = entry;
        let lasts = record.detail.strip_prefix("for ").and_then(|text| humantime::parse_duration(text).ok());
        let is_of_key = record.gate == gate && record.key == key;
        let has_end = |lasts: Duration| {
            unix_ms.saturating_add(lasts.as_millis() as u64).abs_diff(ends_ms) <= MAX_DIFFERENCE_MS
        };
        record.verb == "block"
            && is_of_key
            && !record.result.starts_with("failed")
            && lasts.is_some_and(has_end)
    };
    Some(match (entries.iter().find(is_this_block), ban) {
        (Some(entry), _) => format!("The operator {} has blocked it.", entry.record.operator),
        // A block by a program has no entry.
        (None, Some(ban)) if left <= ban.lasts() => format!(
            "Its rule bans it ({} denials within {}), unless a program has blocked it.",
            ban.denials(),
            human(ban.within())
        ),
        (None, _) => {
            "A program has blocked it: none of the newest entries of the audit log is of it.".to_owned()
        }
    })
}

/// Returns the newest entries of the audit log, or why they cannot be read.
pub(super) async fn audit_entries(log: &AuditLog) -> Result<Vec<AuditEntry>, String> {
    let entries = log.entries(MAX_AUDIT_ENTRIES).await;
    entries.map_err(|error| format!("The audit log cannot be read: {error}"))
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

    fn entry(verb: &str, gate: &str, key: &str, result: &str) -> AuditEntry {
        let [verb, gate, key, result] = [verb, gate, key, result].map(str::to_owned);
        let reason = format!("{verb} {gate} {key}");
        AuditEntry {
            unix_ms: 0,
            record: AuditRecord { verb, gate, key, result, reason, ..AuditRecord::default() },
        }
    }

    #[test]
    fn block_is_by_the_operator_whose_block_has_its_end_else_by_the_ban_or_a_program() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let block = |operator: &str, age: Duration, detail: &str, result: &str| {
            let mut block = entry("block", "login", "bob", result);
            block.unix_ms = now_ms() - age.as_millis() as u64;
            (block.record.operator, block.record.detail) = (operator.to_owned(), detail.to_owned());
            block
        };
        let log = [
            block("eve", HOUR, "for 5h", "failed: no Redis"),
            block("ada", HOUR, "for 5h", "blocked for 5h"),
            block("joe", 2 * HOUR, "for 5h", "blocked for 5h"),
        ];
        let bob = ("login", "bob");
        let ban = Ban::after(3, HOUR).lasting(2 * HOUR);
        let by = |log, hours, ban| blocked_by(log, bob, hours * HOUR, ban).unwrap();
        assert_eq!(by(Some(&log), 4, Some(ban)), "The operator ada has blocked it.");
        assert_eq!(by(Some(&log), 3, None), "The operator joe has blocked it.");
        assert!(by(Some(&log), 2, Some(ban)).starts_with("Its rule bans it (3 denials within 1h), unless"));
        assert!(by(Some(&log), 5, Some(ban)).starts_with("A program has"), "longer than a ban");
        assert!(by(Some(&[]), 2, None).starts_with("A program has blocked it"));
        assert_eq!(blocked_by(None, bob, HOUR, Some(ban)), None, "an unreadable log tells nothing");
        assert!(blocked_by(Some(&log), ("login", "zoe"), 4 * HOUR, None).unwrap().starts_with("A program"));
    }

    #[test]
    fn origin_of_an_override_is_the_newest_change_that_made_it() {
        let log = [
            entry("forget", "", "zoe", "overrides ended: 1"),
            entry("override", "b", "zoe", "has a quota"),
            entry("switch", "a", "", "failed: no Redis"),
            entry("end_override", "a", "bob", "ended"),
            entry("switch", "a", "", "switched closed"),
            entry("override", "a", "bob", "has a quota"),
            entry("override", "a", "ada", "has a quota"),
        ];
        let reason = |gate, key| origin_of(&log, gate, key).map(|record| &*record.reason);
        assert_eq!(reason("b", Some("zoe")), None, "it was forgotten");
        assert_eq!(reason("a", None), Some("switch a "));
        assert_eq!(reason("a", Some("ada")), Some("override a ada"));
        assert_eq!((reason("a", Some("bob")), reason("b", None)), (None, None));
    }
}

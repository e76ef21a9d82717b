//! The log of all changes that operators make: an event for the program's subscriber, and the newest entries in the
//! stream of the namespace in Redis, or in this process if the limiter has no Redis.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::Error;
use tidegate::admin::{AuditEntry, AuditRecord, Inspector};

use super::access::Identity;

/// The entries that this process remembers without Redis.
const MAX_REMEMBERED: usize = 1_000;

/// A function that is called with each change: see [`Admin::on_audit`](super::Admin::on_audit).
pub(crate) type OnAudit = Arc<dyn Fn(&AuditEntry, Result<(), &Error>) + Send + Sync>;

/// A change that an operator asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditAction {
    /// `block`, `unblock`, `reset`, `override`, `end_override`, `switch` or `end_switch`.
    pub(crate) verb: &'static str,
    pub(crate) gate: String,
    /// The key as stored; empty for a switch, which is of all keys.
    pub(crate) key: String,
    /// The values of the change, such as the time of a block.
    pub(crate) detail: String,
    /// Why, in the operator's words.
    pub(crate) reason: String,
}

/// Clones share it.
#[derive(Clone)]
pub(crate) struct AuditLog(Arc<AuditInner>);

struct AuditInner {
    inspector: Option<Inspector>,
    on_audit: Option<OnAudit>,
    /// Used without Redis.
    remembered: Mutex<VecDeque<AuditEntry>>,
}

impl AuditLog {
    pub(crate) fn new(inspector: Option<Inspector>, on_audit: Option<OnAudit>) -> Self {
        Self(Arc::new(AuditInner { inspector, on_audit, remembered: Mutex::default() }))
    }

    /// Records a change after it was tried, with its result in words or its error.
    ///
    /// # Errors
    ///
    /// If Redis did not store the entry. The event is there in any case, and contains that error.
    pub(crate) async fn record(
        &self,
        identity: &Identity,
        action: AuditAction,
        result: Result<&str, &Error>,
    ) -> Result<(), Error> {
        let AuditAction { verb, gate, key, detail, reason } = action;
        let record = AuditRecord {
            operator: identity.name.clone(),
            role: identity.role.as_str().to_owned(),
            verb: verb.to_owned(),
            gate,
            key,
            detail,
            reason,
            result: result.map_or_else(|error| format!("failed: {error}"), str::to_owned),
        };
        let entry = AuditEntry { unix_ms: now_ms(), record };
        let stored = match &self.0.inspector {
            Some(inspector) => inspector.record_audit(&entry.record).await,
            None => {
                self.remember(entry.clone());
                Ok(())
            }
        };
        report(&entry, result.is_err(), stored.as_ref().err());
        if let Some(on_audit) = &self.0.on_audit {
            on_audit(&entry, stored.as_ref().copied());
        }
        stored
    }

    /// Returns the newest entries, the newest first.
    ///
    /// # Errors
    ///
    /// If Redis did not return them.
    pub(crate) async fn entries(&self, count: usize) -> Result<Vec<AuditEntry>, Error> {
        match &self.0.inspector {
            Some(inspector) => inspector.audit_log(count).await,
            None => Ok(self.lock().iter().rev().take(count).cloned().collect()),
        }
    }

    fn remember(&self, entry: AuditEntry) {
        let mut remembered = self.lock();
        if remembered.len() == MAX_REMEMBERED {
            remembered.pop_front();
        }
        remembered.push_back(entry);
    }

    /// Ignores poisoning: each change is complete before the lock is released.
    fn lock(&self) -> MutexGuard<'_, VecDeque<AuditEntry>> {
        self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog").field("inspector", &self.0.inspector).finish_non_exhaustive()
    }
}

/// Returns an entry as `/api/audit` shows it, for [`Admin::on_audit`](crate::Admin::on_audit).
#[must_use]
pub fn audit_json(entry: &AuditEntry) -> Value {
    let AuditRecord { operator, role, verb, gate, key, detail, reason, result } = &entry.record;
    json!({
        "unix_ms": entry.unix_ms,
        "operator": operator,
        "role": role,
        "verb": verb,
        "gate": gate,
        "key": key,
        "detail": detail,
        "reason": reason,
        "result": result,
    })
}

/// `is_failed` is whether the change has failed, `error` why Redis has not stored the entry.
fn report(entry: &AuditEntry, is_failed: bool, error: Option<&Error>) {
    let AuditRecord { operator, role, verb, gate, key, detail, reason, result } = &entry.record;
    match error {
        None if is_failed => tracing::warn!(
            target: "tidegate::audit",
            operator, role, verb, gate, key, detail, reason, result,
            "an operator's change: {result}"
        ),
        None => tracing::info!(
            target: "tidegate::audit",
            operator, role, verb, gate, key, detail, reason, result,
            "an operator's change: {result}"
        ),
        Some(error) => tracing::error!(
            target: "tidegate::audit",
            operator, role, verb, gate, key, detail, reason, result, %error,
            "an operator's change: {result}; Redis has not stored the audit entry"
        ),
    }
}

/// Returns the time of this machine, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the time of an entry is shown, and decides nothing")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::access::Role;
    use super::*;
    use crate::captured_events::captured_events;

    #[tokio::test]
    async fn log_in_memory_is_bounded() {
        let log = AuditLog::new(None, None);
        let identity = Identity::named("ada", Role::Operator);
        for index in 0..=MAX_REMEMBERED {
            let action = AuditAction { verb: "reset", key: index.to_string(), ..AuditAction::default() };
            log.record(&identity, action, Ok("done")).await.unwrap();
        }
        let entries = log.entries(usize::MAX).await.unwrap();
        assert_eq!(entries.len(), MAX_REMEMBERED);
        assert_eq!(entries[0].record.key, MAX_REMEMBERED.to_string());
        assert_eq!(entries[MAX_REMEMBERED - 1].record.key, "1");
        assert_eq!(log.entries(2).await.unwrap().len(), 2);
        assert!(log.entries(0).await.unwrap().is_empty());
    }

    #[test]
    fn event_has_the_result_and_warns_of_a_failure() {
        let log = AuditLog::new(None, None);
        let identity = Identity::named("ada", Role::Operator);
        let record = |result: Result<&str, &Error>| {
            let action = AuditAction { verb: "block", gate: "d.user".to_owned(), ..AuditAction::default() };
            captured_events(|| log.record(&identity, action, result).now_or_never().unwrap().unwrap())
        };
        let done = record(Ok("blocked for 1h"));
        assert!(done.contains(" INFO tidegate::audit: an operator's change: blocked for 1h "), "{done}");
        let error = tidegate::Limiter::in_memory()
            .try_gate("<b>", tidegate::Quota::fixed_window(1, std::time::Duration::from_secs(1)))
            .unwrap_err();
        let failed = record(Err(&error));
        assert!(
            failed.contains(&format!(" WARN tidegate::audit: an operator's change: failed: {error}")),
            "{failed}"
        );
        assert!(failed.contains("verb=\"block\""), "{failed}");
    }
}

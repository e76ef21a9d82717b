//! The log of all changes that operators make: an event for the program's subscriber, and the newest entries in the
//! stream of the namespace in Redis, or in this process if the limiter has no Redis.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::Error;
use tidegate::admin::{AuditEntry, AuditRecord, Inspector, Made};

/// The entries that this process remembers without Redis.
const MAX_REMEMBERED: usize = 1_000;

/// A function that is called with each change: see [`Console::on_audit`](crate::Console::on_audit).
pub(crate) type OnAudit = Arc<dyn Fn(&AuditEntry, Result<(), &Error>) + Send + Sync>;

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

    /// Reports a change that was tried, and remembers it if there is no Redis to store it.
    pub(crate) fn record(&self, made: &Made) {
        let entry = AuditEntry { unix_ms: now_ms(), record: made.record.clone() };
        let not_stored = made.audit_error.as_ref();
        report(&entry, made.effect.is_err(), not_stored);
        if let Some(on_audit) = &self.0.on_audit {
            on_audit(&entry, not_stored.map_or(Ok(()), Err));
        }
        if self.0.inspector.is_none() {
            self.remember(entry);
        }
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

/// Returns an entry as `/api/audit` shows it, for [`Console::on_audit`](crate::Console::on_audit).
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
    use tidegate::admin::Effect;
    use tidegate_test_support::captured_events::captured_events;

    use super::*;

    fn made(effect: Result<Effect, Error>, key: &str) -> Made {
        let result = match &effect {
            Ok(effect) => effect.result.clone(),
            Err(error) => format!("failed: {error}"),
        };
        let (verb, key) = ("block".to_owned(), key.to_owned());
        let record = AuditRecord { verb, key, result, ..AuditRecord::default() };
        Made { effect, record, audit_error: None }
    }

    #[tokio::test]
    async fn log_in_memory_is_bounded() {
        let log = AuditLog::new(None, None);
        for index in 0..=MAX_REMEMBERED {
            log.record(&made(Ok(Effect::default()), &index.to_string()));
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
        let record = |effect| captured_events(|| log.record(&made(effect, "eve")));
        let blocked = Effect { result: "blocked for 1h".to_owned(), ..Effect::default() };
        let done = record(Ok(blocked));
        assert!(done.contains(" INFO tidegate::audit: an operator's change: blocked for 1h "), "{done}");
        let error = Error::config("no such gate");
        let failed = record(Err(error));
        assert!(
            failed.contains(" WARN tidegate::audit: an operator's change: failed: no such gate"),
            "{failed}"
        );
        assert!(failed.contains("verb=\"block\""), "{failed}");
    }
}

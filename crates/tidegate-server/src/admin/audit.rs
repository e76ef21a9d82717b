//! The log of all changes that operators make.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::access::Identity;

/// The entries that this process remembers.
const MAX_REMEMBERED: usize = 1_000;

/// A change that an operator asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditAction {
    /// `block`, `unblock`, `reset`, `override`, `end_override`, `switch` or `end_switch`.
    pub(crate) verb: &'static str,
    pub(crate) gate: String,
    /// The key; empty for a switch, which is of all keys.
    pub(crate) key: String,
    /// The values of the change, such as the time of a block.
    pub(crate) detail: String,
    /// Why, in the operator's words.
    pub(crate) reason: String,
}

/// A change, by whom, when, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct AuditEntry {
    pub(crate) unix_ms: u64,
    pub(crate) operator: String,
    pub(crate) role: &'static str,
    pub(crate) action: AuditAction,
    pub(crate) result: String,
}

/// Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditLog {
    recent: Arc<Mutex<VecDeque<AuditEntry>>>,
}

impl AuditLog {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Records a change after it was tried, with its result.
    pub(crate) async fn record(&self, identity: &Identity, action: AuditAction, result: &str) {
        let entry = AuditEntry {
            unix_ms: now_ms(),
            operator: identity.name.clone(),
            role: identity.role.as_str(),
            action,
            result: result.to_owned(),
        };
        tracing::info!(
            target: "tidegate::audit",
            operator = entry.operator,
            role = entry.role,
            verb = entry.action.verb,
            gate = entry.action.gate,
            key = entry.action.key,
            detail = entry.action.detail,
            reason = entry.action.reason,
            result = entry.result,
        );
        let mut recent = self.lock();
        if recent.len() == MAX_REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(entry);
    }

    /// Returns the newest entries, the newest first.
    pub(crate) fn recent(&self, count: usize) -> Vec<AuditEntry> {
        self.lock().iter().rev().take(count).cloned().collect()
    }

    /// Ignores poisoning: each change is complete before the lock is released.
    fn lock(&self) -> MutexGuard<'_, VecDeque<AuditEntry>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_ms() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the time of an entry is shown, and decides nothing")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

//! The name of a queue.

use std::sync::Arc;

use tidegate::Check;

/// Identifies a queue: a gate and a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueName(Arc<[u8]>);

impl QueueName {
    /// Returns the name of the queue for the key of this check.
    pub(super) fn of(check: &Check) -> Self {
        // Requests that may use fewer slots of a key wait apart from critical ones, which would wait behind them.
        let restriction = check.restriction().map_or_else(String::new, |units| format!("{units}\0"));
        // A gate's name contains no zero byte.
        let gate = check.gate().unwrap_or_default().as_bytes();
        Self([gate, b"\0", restriction.as_bytes(), check.key()].concat().into())
    }
}

#[cfg(test)]
impl From<u8> for QueueName {
    fn from(name: u8) -> Self {
        Self([name].into())
    }
}

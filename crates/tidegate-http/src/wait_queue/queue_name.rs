//! The name of a queue.

use std::sync::Arc;

use tidegate::Check;

/// Identifies a queue: a gate and a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueName(Arc<[u8]>);

impl QueueName {
    /// Returns the name of the queue for the key of this check.
    pub(super) fn of(check: &Check) -> Self {
        // A gate's name contains no zero byte.
        Self([check.gate().unwrap_or_default().as_bytes(), b"\0", check.key()].concat().into())
    }
}

#[cfg(test)]
impl From<u8> for QueueName {
    fn from(name: u8) -> Self {
        Self([name].into())
    }
}

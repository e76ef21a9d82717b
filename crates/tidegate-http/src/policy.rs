//! The part of a limit that is reported to clients beside its decision.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Gate;

/// The name and window of one limit.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// Replaces the gate's name.
    pub(super) name: Option<Arc<str>>,
    /// At least 1 second.
    pub(super) window_s: u64,
    /// Whether the limit denies nothing.
    pub(super) is_shadow: bool,
}

impl Policy {
    pub(super) fn new(gate: &Gate, name: Option<Arc<str>>) -> Self {
        let window = gate.quota().map_or(Duration::ZERO, |quota| quota.window());
        Self { name, window_s: whole_seconds(window), is_shadow: false }
    }

    /// Returns the policy of a rule that denies all requests: it has a window and no gate.
    #[cfg(feature = "rules")]
    pub(super) fn for_zero_limit(name: Arc<str>, window: Duration) -> Self {
        Self { name: Some(name), window_s: whole_seconds(window), is_shadow: false }
    }
}

/// Returns the window in seconds, rounded up, at least 1.
fn whole_seconds(window: Duration) -> u64 {
    (window.as_secs() + u64::from(window.subsec_nanos() > 0)).max(1)
}

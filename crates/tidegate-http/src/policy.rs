//! The part of a limit that is reported to clients beside its decision.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Gate, Quota};

use super::in_flight::is_in_flight;

/// The name and window of one limit.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// Replaces the gate's name.
    pub(super) name: Option<Arc<str>>,
    /// At least 1 second. `None` for an in-flight limit, which counts concurrent requests.
    pub(super) window_s: Option<u64>,
    /// Whether the limit denies nothing.
    pub(super) is_shadow: bool,
}

impl Policy {
    pub(super) fn new(gate: &Gate, name: Option<Arc<str>>) -> Self {
        let window = gate.quota().as_ref().map_or(Duration::ZERO, Quota::window);
        let window_s = (!is_in_flight(gate)).then(|| whole_seconds(window));
        Self { name, window_s, is_shadow: false }
    }

    /// Returns the policy of a rule that denies all requests and has no gate. `window`: `None` for an in-flight
    /// limit.
    #[cfg(feature = "rules")]
    pub(super) fn for_zero_limit(name: Arc<str>, window: Option<Duration>) -> Self {
        Self { name: Some(name), window_s: window.map(whole_seconds), is_shadow: false }
    }
}

/// Returns the window in seconds, rounded up, at least 1.
fn whole_seconds(window: Duration) -> u64 {
    (window.as_secs() + u64::from(window.subsec_nanos() > 0)).max(1)
}

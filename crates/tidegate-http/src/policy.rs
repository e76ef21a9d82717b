//! The part of a limit that is reported to clients beside its decision.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{Gate, Quota};

use super::in_flight::is_in_flight;
use super::partition_key::PartitionKey;

/// The unit of a policy that names none.
const REQUESTS: &str = "requests";

/// The unit of an in-flight limit, if its rule names none.
const CONCURRENT_REQUESTS: &str = "concurrent-requests";

/// The policies of one request's limits.
pub(super) type Policies = SmallVec<[Policy; 1]>;

/// The name, unit, window and partition of one limit.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// Replaces the gate's name.
    pub(super) name: Option<Arc<str>>,
    /// Replaces the default unit.
    pub(super) unit: Option<Arc<str>>,
    /// The partition of this request, if its rule reports it.
    pub(super) partition_key: Option<PartitionKey>,
    /// At least 1 second. `None` for an in-flight limit, which counts concurrent requests.
    pub(super) window_s: Option<u64>,
    /// Whether the limit denies nothing.
    pub(super) is_shadow: bool,
}

impl Policy {
    pub(super) fn new(gate: &Gate, name: Option<Arc<str>>) -> Self {
        let window = gate.quota().as_ref().map_or(Duration::ZERO, Quota::window);
        let window_s = (!is_in_flight(gate)).then(|| whole_seconds(window));
        Self { name, window_s, unit: None, partition_key: None, is_shadow: false }
    }

    /// Returns the policy of a rule that denies all requests and has no gate. `window`: `None` for an in-flight
    /// limit.
    #[cfg(feature = "rules")]
    pub(super) fn for_zero_limit(name: Arc<str>, window: Option<Duration>) -> Self {
        let window_s = window.map(whole_seconds);
        Self { name: Some(name), window_s, unit: None, partition_key: None, is_shadow: false }
    }

    /// Returns the unit to report, or `None` for the default of the drafts, requests.
    pub(super) fn reported_unit(&self) -> Option<&str> {
        let default = if self.window_s.is_some() { REQUESTS } else { CONCURRENT_REQUESTS };
        Some(self.unit.as_deref().unwrap_or(default)).filter(|unit| *unit != REQUESTS)
    }
}

/// Returns the window in seconds, rounded up, at least 1.
fn whole_seconds(window: Duration) -> u64 {
    (window.as_secs() + u64::from(window.subsec_nanos() > 0)).max(1)
}

//! The part of a limit that is reported to clients beside its decision.

use std::sync::Arc;

use crate::gate::Gate;
use crate::quota::{FixedWindow, Kind, LeakyBucket, SlidingCounter, SlidingLog};

/// The name and window of one limit.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// Replaces the gate's name.
    pub(super) name: Option<Arc<str>>,
    /// At least 1 second.
    pub(super) window_s: u64,
}

impl Policy {
    pub(super) fn new(gate: &Gate, name: Option<Arc<str>>) -> Self {
        let window_us = gate.info().map_or(0, |info| window_us(info.quota.kind()));
        Self { name, window_s: window_us.div_ceil(1_000_000).max(1) }
    }

    /// Returns the policy of a rule that denies all requests: it has a window and no gate.
    #[cfg(feature = "rules")]
    pub(super) fn for_zero_limit(name: Arc<str>, window: std::time::Duration) -> Self {
        let window_s = window.as_secs() + u64::from(window.subsec_nanos() > 0);
        Self { name: Some(name), window_s }
    }
}

/// Returns the quota's window in microseconds. The window of a bucket is the time in which it fills.
fn window_us(kind: &Kind) -> u64 {
    match *kind {
        // Cannot overflow: the capacity in ticks is below 2^48.
        Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => {
            (bucket.capacity * bucket.per).div_ceil(bucket.rate)
        }
        Kind::FixedWindow(FixedWindow { window_us, .. })
        | Kind::SlidingLog(SlidingLog { window_us, .. })
        | Kind::SlidingCounter(SlidingCounter { window_us, .. }) => window_us,
    }
}

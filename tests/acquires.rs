//! Permits of in-flight limits: acquiring, waiting, releasing, and what remains of them after failures.

mod behaviours;
mod calls;
mod failures;
mod fleet;
mod groups;
mod late;
mod servers;
mod shutdown;

use std::time::Duration;

use tidegate::{Builder, Gate, Permit};
use tidegate_testkit::Server;

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::builder;

/// Returns settings of which permits lapse soon after the process stops.
fn short_lived(server: &Server) -> Builder {
    builder(server.url()).permit_ttl(TTL)
}

/// The time to live of permits in these tests.
const TTL: Duration = Duration::from_secs(1);

/// Acquires as many permits of one unit as the gate admits.
async fn acquire_until_denied(gate: &Gate, key: &str) -> Vec<Permit> {
    let mut permits = Vec::new();
    while let Some(permit) = gate.try_acquire(key).await.unwrap().permit() {
        permits.push(permit);
    }
    permits
}

async fn remaining(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

#[test]
fn time_to_live_outside_of_1_to_60_s_is_a_mistake() {
    let build = |ttl| tidegate::Limiter::builder().in_memory().permit_ttl(ttl).build();
    for ttl in [Duration::ZERO, Duration::from_millis(999), Duration::from_millis(60_001), Duration::MAX] {
        let error = build(ttl).unwrap_err();
        assert!(error.is_config() && error.to_string().contains("permit_ttl"), "{error}");
    }
    for ttl in [TTL, Duration::from_secs(60)] {
        assert!(build(ttl).is_ok());
    }
}

//! Leases: units that are spent without a call to Redis never exceed the bounds.

mod bounds;
mod ending;
mod fleet;
mod spending;

use std::time::{Duration, Instant};

use tidegate::{Gate, Lease, Limiter, Quota, Rate};

use crate::support::fixture::soon;

const MINUTE: Duration = Duration::from_secs(60);
const HOLD: Duration = Duration::from_secs(1);

/// Returns the default settings, except for a small table: reading the statistics visits all of it.
fn lease() -> Lease {
    Lease::new().max_keys(100)
}

/// Returns one leased gate for each algorithm that supports leases, with `limit` units per minute.
fn gates(limiter: &Limiter, limit: u64, lease: Lease) -> [Gate; 5] {
    [
        ("token", Quota::token_bucket(limit, Rate::per_minute(limit))),
        ("fixed", Quota::fixed_window(limit, MINUTE)),
        ("clock", Quota::fixed_window(limit, MINUTE).aligned_to_clock()),
        ("log", Quota::sliding_log(limit, MINUTE)),
        ("counter", Quota::sliding_counter(limit, MINUTE)),
    ]
    .map(|(name, quota)| limiter.gate(name, quota).leased(lease))
}

/// Checks until there is a lease. Returns the number of admitted checks.
async fn get_lease(gate: &Gate, key: &str) -> u64 {
    // Read first: the lease may arrive during the last check.
    let taken = gate.lease_stats().taken;
    let (mut spent, mut again) = (0, Instant::now());
    soon("a lease", async || {
        // A lease begins with the fourth check of a period, which may have ended between them.
        if Instant::now() >= again {
            for _ in 0..4 {
                let decision = gate.check(key).await.unwrap();
                assert!(decision.is_allowed(), "{gate:?}");
            }
            (spent, again) = (spent + 4, Instant::now() + Duration::from_secs(1));
        }
        gate.lease_stats().taken > taken
    })
    .await;
    spent
}

/// Makes a lease grow until it holds this number of units at once. Returns the number of spent units.
async fn grow(gate: &Gate, key: &str, held: u64) -> u64 {
    let mut spent = get_lease(gate, key).await;
    while gate.lease_stats().held < held {
        let taken = gate.lease_stats().taken;
        // Spends down to the refill threshold.
        loop {
            let decision = gate.check(key).await.unwrap();
            let stats = gate.lease_stats();
            assert!(decision.is_allowed(), "{gate:?}, {spent} spent: {stats:?}");
            spent += 1;
            tokio::task::yield_now().await;
            if gate.lease_stats().taken > taken || gate.lease_stats().held >= held {
                break;
            }
        }
    }
    spent
}

/// Asserts that every taken unit is accounted for.
fn assert_adds_up(gate: &Gate) {
    let stats = gate.lease_stats();
    assert_eq!(stats.taken, stats.spent + stats.held + stats.returned + stats.stranded, "{stats:?}");
}

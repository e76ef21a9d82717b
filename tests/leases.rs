//! Leases: what is spent without asking, and that it never exceeds the bounds.

mod bounds;
mod ending;
mod fleet;
mod spending;

use std::time::Duration;

use tidegate::{Gate, Lease, Limiter, Quota, Rate};

use crate::support::fixture::soon;

const MINUTE: Duration = Duration::from_secs(60);
const HOLD: Duration = Duration::from_secs(1);

/// One leased gate for each algorithm that can be leased, of `limit` a minute.
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

/// Asks until there is a lease: so many were admitted.
async fn get_lease(gate: &Gate, key: &str) -> u64 {
    // Read first: the lease may arrive during the last check.
    let taken = gate.lease_stats().taken;
    for _ in 0..4 {
        let decision = gate.check(key).await.unwrap();
        assert!(decision.is_allowed(), "{gate:?}");
    }
    soon("a lease", async || gate.lease_stats().taken > taken).await;
    4
}

/// Makes a lease grow, until so much is held at once. How many were spent.
async fn grow(gate: &Gate, key: &str, held: u64) -> u64 {
    let mut spent = get_lease(gate, key).await;
    while gate.lease_stats().held < held {
        let taken = gate.lease_stats().taken;
        // Down to where it is refilled.
        loop {
            let decision = gate.check(key).await.unwrap();
            assert!(decision.is_allowed(), "{gate:?}");
            spent += 1;
            tokio::task::yield_now().await;
            if gate.lease_stats().taken > taken || gate.lease_stats().held >= held {
                break;
            }
        }
    }
    spent
}

/// Every unit that was taken is somewhere.
fn assert_adds_up(gate: &Gate) {
    let stats = gate.lease_stats();
    assert_eq!(stats.taken, stats.spent + stats.held + stats.returned + stats.stranded, "{stats:?}");
}

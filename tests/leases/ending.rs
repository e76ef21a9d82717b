//! Tests how leases end, and where their unspent units go.

use std::time::Duration;

use tidegate::{Limiter, ManualClock, OnFailure, Quota, Source};
use tidegate_testkit::Server;

use super::{HOLD, MINUTE, assert_adds_up, gates, get_lease, grow, lease};
use crate::support::behaviours;
use crate::support::fixture::{builder, limiter, namespace, soon};

const MS: Duration = Duration::from_millis(1);

behaviours! {
    async fn a_lease_ends_after_its_hold_and_is_given_back(world) {
        for gate in gates(&world.limiter, 1_000, lease().hold(HOLD).max_units(4)) {
            let used = get_lease(&gate, "x").await;
            world.advance(HOLD - MS);
            assert!(gate.try_check("x").is_some(), "{gate:?}");
            soon("a refill", async || gate.lease_stats().taken > 2).await;
            world.advance(MS);
            let taken = gate.lease_stats().taken;
            // The units of the latest refill are still valid; the earlier ones have expired.
            assert_eq!(gate.lease_stats().held, taken - 1);
            let left = gate.try_check("x").map(|decision| decision.remaining());
            assert!(left.is_none_or(|left| left < taken - 2), "{left:?} of {taken}: {gate:?}");
            // A refill that was on its way is valid for a further hold.
            let mut ended = 0;
            soon("all leases have ended", async || {
                let taken = gate.lease_stats().taken;
                if taken > ended {
                    ended = taken;
                    world.advance(HOLD);
                }
                gate.lease_stats().keys == 0
            })
            .await;
            soon("all units are given back", async || gate.lease_stats().held == 0).await;
            let stats = gate.lease_stats();
            assert_eq!(stats.stranded, 0);
            assert!(stats.returned > 0);
            assert_adds_up(&gate);
            // Exact where nothing drains: a window and a log have not released any units yet.
            if matches!(gate.name(), Some("fixed" | "clock" | "log" | "counter")) {
                let peek = gate.peek("x").await.unwrap();
                assert_eq!(peek.remaining(), 1_000 - used - stats.spent, "{gate:?}");
            }
            world.set(Duration::ZERO);
        }
    }

    async fn an_unused_lease_charges_nothing_after_its_end(world) {
        for gate in gates(&world.limiter, 1_000, lease().hold(HOLD).max_units(2)) {
            let used = get_lease(&gate, "x").await;
            world.advance(HOLD);
            assert!(gate.try_check("x").is_none());
            soon("the lease is given back", async || gate.lease_stats().returned == 2).await;
            let peek = gate.peek("x").await.unwrap();
            // The bucket drains 16.7 units per second, so it is empty.
            let used = if gate.name() == Some("token") { 0 } else { used };
            assert_eq!(peek.remaining(), 1_000 - used, "{gate:?}");
            assert_eq!(gate.lease_stats().keys, 0);
            world.set(Duration::ZERO);
        }
    }

    async fn a_lease_ends_with_its_window(world) {
        let [_, fixed, clock, _, counter] = gates(&world.limiter, 1_000, lease().hold(MINUTE * 10));
        for gate in [fixed, clock, counter] {
            world.set(Duration::from_secs(50));
            get_lease(&gate, "x").await;
            // The fixed window began with its first check; the others end with the minute.
            let end = Duration::from_secs(if gate.name() == Some("fixed") { 110 } else { 60 });
            world.set(end - MS);
            assert!(gate.try_check("x").is_some(), "{gate:?}");
            world.set(end);
            assert!(gate.try_check("x").is_none(), "{gate:?}");
            soon("the remaining units are given back", async || gate.lease_stats().returned > 0).await;
            assert_adds_up(&gate);
            gate.reset("x").await.unwrap();
        }
    }

    async fn a_leased_window_never_admits_more_than_its_limit(world) {
        let [_, fixed, clock, ..] = gates(&world.limiter, 50, lease().hold(MINUTE * 10).max_units(20));
        for gate in [fixed, clock] {
            for minute in 0..4 {
                world.set(MINUTE * minute);
                let mut admitted = 0;
                // Spends at the start of the window, and the remaining units just before its end.
                for moment in [Duration::ZERO, MINUTE - MS] {
                    world.set(MINUTE * minute + moment);
                    for _ in 0..60 {
                        admitted += u64::from(gate.check("x").await.unwrap().is_allowed());
                        tokio::task::yield_now().await;
                    }
                }
                assert!(admitted <= 50, "{admitted} in minute {minute}: {gate:?}");
            }
            gate.reset("x").await.unwrap();
        }
    }

    async fn dropping_the_last_clone_gives_all_units_back(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(100)) {
            let spent = grow(&gate, "x", 20).await;
            let unleased = world.limiter.gate(gate.name().unwrap(), *quota_of(&gate));
            let clone = gate.clone();
            drop(gate);
            tokio::task::yield_now().await;
            assert!(clone.try_check("x").is_some(), "another clone still has the lease");
            drop(clone);
            soon("all units are given back", async || {
                unleased.peek("x").await.unwrap().remaining() == 1_000 - spent - 1
            })
            .await;
        }
    }
}

/// The quota of the gate, which does not expose it.
fn quota_of(gate: &tidegate::Gate) -> &'static Quota {
    use tidegate::Rate;
    const QUOTAS: [(&str, Quota); 5] = [
        ("token", Quota::token_bucket(1_000, Rate::per_minute(1_000))),
        ("fixed", Quota::fixed_window(1_000, MINUTE)),
        ("clock", Quota::fixed_window(1_000, MINUTE).aligned_to_clock()),
        ("log", Quota::sliding_log(1_000, MINUTE)),
        ("counter", Quota::sliding_counter(1_000, MINUTE)),
    ];
    static FOUND: [(&str, Quota); 5] = QUOTAS;
    &FOUND.iter().find(|(name, _)| gate.name() == Some(name)).unwrap().1
}

#[tokio::test]
async fn a_shutdown_gives_all_units_back_before_it_returns() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let open = || builder(server.url()).namespace(&namespace).build().unwrap();
    let (one, other) = (open(), open());
    // A bucket would have drained a little, and the lower sum could hide a missing unit.
    let quota = Quota::fixed_window(1_000, MINUTE * 60);
    let gate = one.gate("gate", quota).leased(lease().max_units(100).hold(MINUTE));
    let mut spent = 0;
    for key in ["a", "b", "c"] {
        spent = grow(&gate, key, gate.lease_stats().held + 10).await;
    }
    let stats = gate.lease_stats();
    assert!(stats.held >= 10);
    one.shutdown().await;
    let after = gate.lease_stats();
    assert_eq!((after.held, after.keys, after.stranded), (0, 0, 0), "{after:?}");
    assert_adds_up(&gate);
    assert_eq!(other.gate("gate", quota).peek("c").await.unwrap().remaining(), 1_000 - spent);
    assert!(gate.try_check("a").is_none());
    assert!(gate.check("a").await.unwrap_err().is_shut_down());
}

#[tokio::test]
async fn a_gate_dropped_just_before_a_shutdown_gives_its_units_back() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let open = || builder(server.url()).namespace(&namespace).build().unwrap();
    let (one, quota) = (open(), Quota::sliding_log(1_000, MINUTE * 60));
    let gate = one.gate("gate", quota).leased(lease().hold(MINUTE));
    let spent = grow(&gate, "x", 10).await;
    drop(gate);
    one.shutdown().await;
    assert_eq!(open().gate("gate", quota).peek("x").await.unwrap().remaining(), 1_000 - spent);
}

#[tokio::test]
async fn while_redis_is_down_leases_are_spent_until_they_end() {
    let server = Server::process(&[]).unwrap();
    let clock = ManualClock::new();
    let limiter = builder(server.url()).manual_clock(clock.clone()).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, MINUTE * 60)).leased(lease().hold(HOLD));
    let gate = gate.on_failure(OnFailure::Closed);
    grow(&gate, "x", 8).await;
    drop(server);
    soon("Redis is gone", async || gate.peek("x").await.unwrap().source() == Source::Closed).await;
    let held = gate.lease_stats().held;
    assert!(held >= 4, "{held}");
    for _ in 0..held / 2 {
        assert_eq!(gate.check("x").await.unwrap().source(), Source::Lease);
    }
    clock.advance(HOLD);
    assert_eq!(gate.check("x").await.unwrap().source(), Source::Closed);
    soon("the remaining units are stranded", async || {
        clock.advance(MS);
        let stats = gate.lease_stats();
        stats.held == 0 && stats.stranded > 0
    })
    .await;
    assert_adds_up(&gate);
}

#[test]
fn a_lease_outlives_the_runtime_of_its_callers() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gate = Limiter::in_memory().gate("gate", Quota::fixed_window(1_000, MINUTE));
    let gate = gate.leased(lease().hold(MINUTE).max_units(8));
    let first = runtime();
    first.block_on(get_lease(&gate, "x"));
    drop(first);
    assert!(gate.try_check("x").is_some());
    runtime().block_on(soon("a refill", async || {
        let taken = gate.lease_stats().taken;
        while gate.try_check("x").is_some() {}
        soon("more units", async || gate.check("x").await.is_ok() && gate.lease_stats().taken > taken).await;
        true
    }));
    assert_adds_up(&gate);
}

/// The background jobs of this limiter run on the runtime of the caller.
#[test]
fn with_a_manual_clock_a_lease_ends_with_its_runtime_and_another_runtime_starts_a_new_one() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, MINUTE)).leased(lease());
    let first = runtime();
    first.block_on(get_lease(&gate, "x"));
    assert!(gate.try_check("x").is_some(), "outside a runtime");
    drop(first);
    assert!(gate.try_check("x").is_none());
    let stats = gate.lease_stats();
    assert_eq!((stats.keys, stats.held, stats.stranded), (0, 0, 1));
    assert_adds_up(&gate);
    let second = runtime();
    second.block_on(async {
        // If these checks counted as demand of the same second, they would look like an existing lease.
        soon("demand", async || {
            let _ = gate.check("y").await.unwrap();
            gate.lease_stats().held > 0
        })
        .await;
    });
    assert!(gate.try_check("y").is_some());
    drop(gate);
    second.block_on(tokio::task::yield_now());
}

#[tokio::test]
async fn a_check_dropped_in_flight_does_not_affect_leases() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    let gate = limiter.gate("gate", Quota::fixed_window(100_000, MINUTE * 60)).leased(lease().max_units(50));
    for round in 0..200u32 {
        let check = gate.check("x");
        // Dropped at its first await, at a later one, or never.
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(round % 20) * 20), check).await;
    }
    soon("a lease", async || {
        let _ = gate.check("x").await.unwrap();
        gate.try_check("x").is_some()
    })
    .await;
    limiter.shutdown().await;
    assert_adds_up(&gate);
    assert_eq!(gate.lease_stats().held, 0);
}

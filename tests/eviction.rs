//! Checks of many fresh keys do not free a blocked or exhausted key, in memory and in the fallback.

use std::time::Duration;

use tidegate::{Gate, Limiter, Quota, Source};
use tidegate_testkit::{Fault, Proxy};

use crate::support::fixture::{HOUR, builder_as_is, closed_port, quotas, soon};

/// More than `max_keys`, by default 100,000.
const FRESH_KEYS: u64 = 120_000;

/// Long enough that no test reaches the next window.
const WINDOW: Duration = Duration::from_secs(24_000 * HOUR.as_secs());

/// Returns an in-memory limiter, and one that decides by its fallback.
fn limiters() -> [(&'static str, Limiter); 2] {
    let without_redis = builder_as_is(&format!("redis://127.0.0.1:{}", closed_port()));
    [
        ("in memory", Limiter::in_memory()),
        ("fallback", without_redis.instances(1).deny_cache(Duration::ZERO).build().unwrap()),
    ]
}

async fn check_fresh_keys(limiter: &Limiter, quota: Quota) {
    let gate = limiter.gate("fresh", quota);
    for key in 0..FRESH_KEYS {
        assert!(gate.check(key).await.unwrap().is_allowed());
    }
}

async fn remaining(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

#[tokio::test]
async fn exhausted_key_stays_denied_after_100_000_fresh_keys() {
    for (store, limiter) in limiters() {
        let gates = quotas(10, WINDOW).map(|(name, quota)| limiter.gate(name, quota));
        for gate in &gates {
            for _ in 0..10 {
                assert!(gate.check("attacker").await.unwrap().is_allowed());
            }
        }
        // Each fresh key is exhausted too, but has used fewer units.
        check_fresh_keys(&limiter, Quota::fixed_window(1, WINDOW)).await;
        for gate in &gates {
            let denied = gate.check("attacker").await.unwrap();
            assert!(!denied.is_allowed(), "{store}: {denied}");
        }
    }
}

#[tokio::test]
async fn key_with_half_of_its_limit_used_keeps_its_count_after_100_000_fresh_keys() {
    for (store, limiter) in limiters() {
        let gate = limiter.gate("gate", Quota::fixed_window(10, WINDOW));
        let used = [0, 4, 5, 9, 10];
        for units in used {
            assert!(gate.check_cost(units.to_string(), units).await.unwrap().is_allowed());
        }
        check_fresh_keys(&limiter, Quota::fixed_window(100, WINDOW)).await;
        for (units, left) in used.into_iter().zip([10, 10, 5, 1, 0]) {
            assert_eq!(remaining(&gate, &units.to_string()).await, left, "{store}: {units} of 10 were used");
        }
    }
}

#[tokio::test]
async fn blocked_key_stays_blocked_in_memory_after_100_000_fresh_keys() {
    let limiter = Limiter::in_memory();
    let gate = limiter.gate("gate", Quota::fixed_window(10, WINDOW));
    gate.block("attacker", WINDOW).await.unwrap();
    check_fresh_keys(&limiter, Quota::fixed_window(1, WINDOW)).await;
    assert!(!gate.check("attacker").await.unwrap().is_allowed());
}

#[tokio::test]
async fn blocked_key_stays_blocked_in_the_fallback_after_100_000_fresh_keys() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let limiter = builder_as_is(&proxy.url()).deny_cache(Duration::ZERO).instances(1).build().unwrap();
    soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    let gate = limiter.gate("gate", Quota::fixed_window(10, WINDOW));
    gate.block("attacker", WINDOW).await.unwrap();
    assert!(!gate.check("attacker").await.unwrap().is_allowed());
    proxy.set(Fault::Refuse);
    assert!(!gate.check("attacker").await.unwrap().is_allowed());
    check_fresh_keys(&limiter, Quota::fixed_window(1, WINDOW)).await;
    let denied = gate.check("attacker").await.unwrap();
    assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Local));
}

#[tokio::test]
async fn key_whose_units_are_held_stays_in_memory() {
    let limiter = Limiter::builder().in_memory().max_keys(16).build().unwrap();
    let jobs = limiter.gate("jobs", Quota::in_flight(10));
    let _permit = jobs.acquire("x").await.unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(10, HOUR));
    for key in 0..1_000 {
        assert!(gate.check(key.to_string()).await.unwrap().is_allowed());
    }
    assert_eq!(jobs.peek("x").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn a_quarter_of_max_keys_stay_blocked_and_beyond_it_the_shortest_block_is_evicted() {
    for (blocked, evicted) in [(0, None), (4, None), (5, Some(1))] {
        let limiter = Limiter::builder().in_memory().max_keys(16).build().unwrap();
        let gate = limiter.gate("gate", Quota::fixed_window(10, WINDOW));
        for key in 1..=blocked {
            gate.block(key.to_string(), HOUR * key).await.unwrap();
        }
        for key in 0..100 {
            assert!(gate.check(format!("fresh {key}")).await.unwrap().is_allowed());
        }
        for key in 1..=blocked {
            let is_allowed = gate.peek(key.to_string()).await.unwrap().is_allowed();
            assert_eq!(is_allowed, evicted == Some(key), "key {key} of {blocked}");
        }
    }
}

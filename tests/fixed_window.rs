//! A fixed window in Redis is a plain count that expires with the window.

use std::time::Duration;

use tidegate::{Gate, Limiter, OnFailure, Quota};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder, limiter, soon};
use crate::support::world::START;

const MINUTE: Duration = Duration::from_secs(60);
/// Long enough that it hardly ever ends during a test on a running clock.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const KEY: &str = "user:42";

fn quotas(window: Duration) -> [(&'static str, Quota); 2] {
    let quota = Quota::fixed_window(5, window);
    [("first", quota), ("clock", quota.aligned_to_clock())]
}

fn redis_key(gate: &Gate) -> String {
    gate.redis_key(KEY).unwrap()
}

fn get(server: &Server, gate: &Gate) -> String {
    server.cli(&["GET", &redis_key(gate)]).unwrap().trim_matches('"').to_owned()
}

fn expires_ms(server: &Server, gate: &Gate) -> i64 {
    let reply = server.cli(&["PEXPIRETIME", &redis_key(gate)]).unwrap();
    reply.trim_start_matches("(integer) ").parse().unwrap()
}

async fn used(gate: &Gate) -> u64 {
    let peek = gate.peek(KEY).await.unwrap();
    peek.limit() - peek.remaining()
}

/// A server whose clock stands at a time after [`START`], and a limiter without a deny cache.
struct Frozen {
    server: Server,
    limiter: Limiter,
}

impl Frozen {
    fn new() -> Self {
        let server = Server::with_shiftable_clock().unwrap();
        let limiter = builder(server.url()).deny_cache(Duration::ZERO).build().unwrap();
        let frozen = Self { server, limiter };
        frozen.set(Duration::ZERO);
        frozen
    }

    fn set(&self, since_start: Duration) {
        self.server.freeze_clock(micros(since_start));
    }
}

fn micros(since_start: Duration) -> u64 {
    u64::try_from((START + since_start).as_micros()).unwrap()
}

#[tokio::test]
async fn get_shows_the_count_and_the_expiry_is_the_end_of_the_window() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    for (name, quota) in quotas(YEAR) {
        let gate = limiter.gate(name, quota);
        for cost in [1, 2] {
            let decision = gate.check_cost(KEY, cost).await.unwrap();
            let end_us = u128::from(decision.server_now_us()) + decision.reset_after().as_micros();
            assert_eq!(expires_ms(&server, &gate) as u128 * 1_000, end_us, "{name}");
        }
        assert_eq!(get(&server, &gate), "3", "{name}");
    }
}

#[tokio::test]
async fn a_denied_check_leaves_the_count_and_the_expiry_as_they_were() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    for (name, quota) in quotas(YEAR) {
        let gate = limiter.gate(name, quota);
        assert!(gate.check_cost(KEY, 4).await.unwrap().is_allowed());
        let before = expires_ms(&server, &gate);
        for cost in [2, 3, 5] {
            assert!(!gate.check_cost(KEY, cost).await.unwrap().is_allowed(), "{name}");
            assert_eq!((&*get(&server, &gate), expires_ms(&server, &gate)), ("4", before), "{name}");
        }
        assert!(gate.check(KEY).await.unwrap().is_allowed(), "{name}");
        assert_eq!(get(&server, &gate), "5", "{name}");
    }
}

#[tokio::test]
async fn a_window_ends_exactly_although_redis_keeps_its_key_up_to_999_us_longer() {
    let frozen = Frozen::new();
    for (name, quota) in quotas(HOUR) {
        for late_us in [0, 1, 999] {
            let gate = frozen.limiter.gate(&format!("{name}.{late_us}"), quota);
            frozen.set(Duration::ZERO);
            assert!(gate.check_cost(KEY, 5).await.unwrap().is_allowed());
            frozen.set(HOUR - Duration::from_micros(1));
            assert!(!gate.check(KEY).await.unwrap().is_allowed(), "{name}");
            frozen.set(HOUR + Duration::from_micros(late_us));
            // Redis 7.0 still has the key. Redis 8 may have removed it.
            assert!(["5", "(nil)"].contains(&&*get(&frozen.server, &gate)), "{name}");
            assert_eq!(used(&gate).await, 0, "{name}");
            assert!(gate.check(KEY).await.unwrap().is_allowed(), "{name}");
            assert_eq!(get(&frozen.server, &gate), "1", "{name}");
        }
    }
}

#[tokio::test]
async fn a_refund_that_reaches_0_removes_the_key_and_the_next_charge_begins_a_window() {
    let frozen = Frozen::new();
    let gate = frozen.limiter.gate("gate", Quota::fixed_window(5, HOUR));
    assert!(gate.check_cost(KEY, 2).await.unwrap().is_allowed());
    gate.refund(KEY, 1).await.unwrap();
    assert_eq!(get(&frozen.server, &gate), "1");
    gate.refund(KEY, 3).await.unwrap();
    assert_eq!(frozen.server.cli(&["EXISTS", &redis_key(&gate)]).unwrap(), "(integer) 0");
    frozen.set(MINUTE);
    assert_eq!(gate.check(KEY).await.unwrap().reset_after(), HOUR);
}

#[tokio::test]
async fn a_blocked_key_carries_both_ends_and_expires_with_the_later_one() {
    let frozen = Frozen::new();
    for (name, quota) in quotas(HOUR) {
        for (block, expires) in [(MINUTE, HOUR), (2 * HOUR, 2 * HOUR)] {
            let gate = frozen.limiter.gate(&format!("{name}.{}", block.as_secs()), quota);
            frozen.set(Duration::ZERO);
            assert!(gate.check_cost(KEY, 3).await.unwrap().is_allowed());
            gate.block(KEY, block).await.unwrap();
            let text = format!("3 until {} blocked until {}", micros(HOUR), micros(block));
            assert_eq!(get(&frozen.server, &gate), text);
            assert_eq!(expires_ms(&frozen.server, &gate) as u64 * 1_000, micros(expires));

            let denied = gate.check(KEY).await.unwrap();
            assert!(!denied.is_allowed());
            assert_eq!((denied.retry_after(), denied.reset_after()), (block, expires));
            assert_eq!(get(&frozen.server, &gate), text, "a denial writes nothing");
            gate.penalize(KEY, 1).await.unwrap();
            assert!(get(&frozen.server, &gate).starts_with("4 until "));
            gate.unblock(KEY).await.unwrap();
            assert_eq!(get(&frozen.server, &gate), "4");
            assert_eq!(expires_ms(&frozen.server, &gate) as u64 * 1_000, micros(HOUR));

            // The block has ended. If it was as long as the window, the window has ended too.
            gate.block(KEY, block).await.unwrap();
            frozen.set(block);
            assert!(gate.check(KEY).await.unwrap().is_allowed());
            assert_eq!(get(&frozen.server, &gate), if block < HOUR { "5" } else { "1" });
        }
    }
}

#[tokio::test]
async fn a_count_that_lost_its_expiry_is_kept_and_expires_again() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    for (name, quota) in quotas(YEAR) {
        let gate = limiter.gate(name, quota);
        assert!(gate.check_cost(KEY, 4).await.unwrap().is_allowed());
        for (count, is_allowed) in [("5", true), ("5", false)] {
            server.cli(&["PERSIST", &redis_key(&gate)]).unwrap();
            assert_eq!(expires_ms(&server, &gate), -1);
            assert_eq!(gate.check(KEY).await.unwrap().is_allowed(), is_allowed, "{name}");
            assert_eq!(get(&server, &gate), count, "{name}");
            assert!(expires_ms(&server, &gate) > 0, "{name}");
        }
    }
}

#[tokio::test]
async fn a_clock_set_back_an_hour_keeps_the_count_and_moves_the_end_of_the_window() {
    let frozen = Frozen::new();
    for (name, quota) in quotas(HOUR) {
        let gate = frozen.limiter.gate(name, quota);
        frozen.set(2 * HOUR);
        assert!(gate.check_cost(KEY, 5).await.unwrap().is_allowed());
        frozen.set(HOUR);
        let denied = gate.check(KEY).await.unwrap();
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, HOUR), "{name}");
        assert_eq!(get(&frozen.server, &gate), "5", "{name}");
        assert_eq!(expires_ms(&frozen.server, &gate) as u64 * 1_000, micros(2 * HOUR), "{name}");
    }
}

/// Both states reject the first write of a script.
#[tokio::test]
async fn without_memory_and_on_a_replica_a_check_over_the_limit_is_a_denial_and_any_other_an_error() {
    let server = Server::process(&[]).unwrap();
    let settings = builder(server.url()).deny_cache(Duration::ZERO).on_failure(OnFailure::Error);
    let limiter = settings.build().unwrap();
    let gates = quotas(YEAR).map(|(name, quota)| limiter.gate(name, quota));
    for gate in &gates {
        assert!(gate.check_cost(KEY, 4).await.unwrap().is_allowed());
    }
    for (set, refusal) in
        [(&["CONFIG", "SET", "maxmemory", "1"][..], "OOM"), (&["REPLICAOF", "127.0.0.1", "1"], "READONLY")]
    {
        assert_eq!(server.cli(set).unwrap(), "OK");
        for gate in &gates {
            assert!(!gate.check_cost(KEY, 2).await.unwrap().is_allowed(), "{refusal}");
            let peek = gate.peek(KEY).await.unwrap();
            assert_eq!((peek.is_allowed(), peek.remaining()), (true, 1), "{refusal}");
        }
        // READONLY makes the limiter close the connection, so the next check may have none.
        for gate in &gates {
            let error = gate.check(KEY).await.unwrap_err();
            assert!(error.is_unavailable() && error.to_string().contains(refusal), "{error}");
            assert_eq!(get(&server, gate), "4", "{refusal}");
        }
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        server.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    }
    for gate in &gates {
        soon("a check is admitted again", async || gate.check(KEY).await.is_ok()).await;
        assert_eq!(get(&server, gate), "5");
    }
}

/// Lua's doubles cannot represent every reply above 2^53.
#[test]
fn a_take_of_more_than_2_52_units_admits_and_charges_exactly() {
    const LIMIT: u64 = (1 << 48) - 1;
    let server = tidegate_testkit::shared();
    let quota = Quota::fixed_window(LIMIT, HOUR);
    let mut redis = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let key = redis_key(&limiter(&server).gate("huge", quota));
    let mut take = |n: u64, cost: u64| -> Vec<i64> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(quota.kind().definition().scripts.take.text).arg(1).arg(&key).arg(&quota.kind().args());
        eval.arg(n).arg(cost).arg("").arg("").query(&mut redis).unwrap()
    };
    let _: Vec<i64> = take(1, 3);
    for (n, cost, k) in [(1 << 20, LIMIT / 2, 1), (1 << 48, 1 << 40, 127), (1 << 53, 1, (1 << 40) - 3)] {
        let reply = take(n, cost);
        assert_eq!(-1 - reply[1], k, "{n} of {cost}: {reply:?}");
    }
    assert_eq!(server.cli(&["GET", &key]).unwrap(), format!("\"{LIMIT}\""));
    assert_eq!(-1 - take(1 << 50, 1)[1], 0);
    server.cli(&["DEL", &key]).unwrap();
}

/// PEXPIREAT with a past time removes the key. DECRBY would then create it again.
#[test]
fn a_window_that_ends_during_its_first_take_leaves_no_count_behind() {
    let server = tidegate_testkit::shared();
    let quota = Quota::fixed_window(1, Duration::from_millis(1)).aligned_to_clock();
    let key = redis_key(&limiter(&server).gate("short", quota));
    let mut redis = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    for take in 0..3_000 {
        let mut eval = redis::cmd("EVAL");
        eval.arg(quota.kind().definition().scripts.take.text).arg(1).arg(&key);
        eval.arg(&quota.kind().args()).arg(42).arg(1).arg("").arg("");
        let _: Vec<i64> = eval.query(&mut redis).unwrap();
        let expires_ms: i64 = redis::cmd("PEXPIRETIME").arg(&key).query(&mut redis).unwrap();
        assert_ne!(expires_ms, -1, "take {take}: the key never expires");
    }
}

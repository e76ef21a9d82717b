//! While Redis is unavailable, each process decides within its share of the quota.

use std::time::{Duration, Instant};

use tidegate::{Builder, Decision, Gate, Limiter, OnFailure, Quota, Rate, Source};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, PATIENCE, Paused, builder_as_is, closed_port, quotas, soon};

/// Returns settings for a Redis that refuses every connection.
fn without_redis() -> Builder {
    builder_as_is(&format!("redis://127.0.0.1:{}", closed_port()))
}

/// Returns settings with which checks time out soon while the server is paused.
fn settings(server: &Server) -> Builder {
    builder_as_is(server.url()).deadline(Duration::from_millis(50)).deny_cache(Duration::ZERO)
}

/// Returns quotas whose units count for at least a day, or until the end of the year.
fn long_quotas(limit: u64) -> impl Iterator<Item = (&'static str, Quota)> {
    let year = Quota::calendar_window(limit, "year@Asia/Kathmandu".parse().unwrap());
    quotas(limit, 24 * HOUR).into_iter().chain([("calendar", year)])
}

/// Makes `checks` checks, which the fallback must decide. Returns how many pass.
async fn pass_locally(gate: &Gate, key: &str, checks: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..checks {
        let decision = gate.check(key).await.unwrap();
        assert_eq!(decision.source(), Source::Local);
        passed += u64::from(decision.is_allowed());
    }
    passed
}

#[tokio::test]
async fn fallback_is_the_default_and_admits_the_share_rounded_up() {
    for (instances, share) in [(1, 21), (4, 6), (21, 1), (1_000, 1)] {
        let limiter = without_redis().instances(instances).build().unwrap();
        for (name, quota) in long_quotas(21) {
            let gate = limiter.gate(name, quota);
            assert_eq!(pass_locally(&gate, "key", 30).await, share, "{quota} of {instances}");
            assert_eq!(pass_locally(&gate, "other", 1).await, 1, "{quota}: keys are independent");
            let denied = gate.check("key").await.unwrap();
            assert!(!denied.is_allowed() && denied.remaining() == 0);
            assert!(denied.retry_after() > Duration::ZERO, "{quota}");
            assert_eq!(denied.limit(), 21);
        }
    }
}

#[tokio::test]
async fn cost_above_the_share_is_denied_without_an_error() {
    let gate = without_redis().instances(4).build().unwrap().gate("gate", Quota::fixed_window(20, HOUR));
    assert!(!gate.check_cost("key", 6).await.unwrap().is_allowed());
    assert!(gate.check_cost("key", 5).await.unwrap().is_allowed());
    assert!(gate.check_cost("key", 21).await.unwrap_err().is_over_capacity());
}

#[tokio::test]
async fn peek_charges_nothing() {
    let gate = without_redis().instances(1).build().unwrap().gate("gate", Quota::fixed_window(2, HOUR));
    for _ in 0..5 {
        let peeked = gate.peek("key").await.unwrap();
        assert_eq!((peeked.is_allowed(), peeked.remaining(), peeked.source()), (true, 2, Source::Local));
    }
    assert_eq!(pass_locally(&gate, "key", 5).await, 2);
    assert!(!gate.peek("key").await.unwrap().is_allowed());
}

#[tokio::test]
async fn group_is_admitted_all_or_nothing() {
    let limiter = without_redis().instances(1).build().unwrap();
    let narrow = limiter.gate("narrow", Quota::fixed_window(2, HOUR));
    let wide = limiter.gate("wide", Quota::token_bucket(100, Rate::per_hour(100)));
    for (allowed, remaining) in [(true, 99), (true, 98), (false, 98), (false, 98)] {
        let decision = limiter.check_all([narrow.key("x"), wide.key("x")]).await.unwrap();
        assert_eq!(decision.is_allowed(), allowed);
        assert_eq!(wide.peek("x").await.unwrap().remaining(), remaining);
        assert!(decision.each_alone().iter().all(|decision| decision.source() == Source::Local));
    }
    let [closed, open] = [OnFailure::Closed, OnFailure::Open].map(|policy| wide.clone().on_failure(policy));
    let denied = limiter.check_all([wide.key("y"), closed.key("z")]).await.unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(wide.peek("y").await.unwrap().remaining(), 100, "a rejected group is charged nothing");
    assert!(limiter.check_all([wide.key("y"), open.key("z")]).await.unwrap().is_allowed());
    assert_eq!(wide.peek("y").await.unwrap().remaining(), 99);
    let failing = wide.clone().on_failure(OnFailure::Error);
    assert!(limiter.check_all([wide.key("y"), failing.key("z")]).await.unwrap_err().is_unavailable());
    assert_eq!(wide.peek("y").await.unwrap().remaining(), 99);
    let unasked = limiter.check_all([wide.key("y"), closed.key("z").cost(0)]).await.unwrap();
    assert!(unasked.is_allowed(), "a cost of 0 denies nothing");
    assert_eq!(wide.peek("y").await.unwrap().remaining(), 98);
}

#[tokio::test]
async fn checks_of_one_key_are_decided_by_the_policy_of_the_first() {
    let limiter = without_redis().instances(1).build().unwrap();
    let local = limiter.gate("gate", Quota::fixed_window(2, HOUR));
    let other = limiter.gate("other", Quota::fixed_window(9, HOUR));
    let open = local.clone().on_failure(OnFailure::Open);
    for (checks, is_allowed, sources) in [
        (vec![open.key("x"), local.key("x")], true, vec![Source::Open; 2]),
        (
            vec![other.key("y"), open.key("x"), local.key("x")],
            true,
            vec![Source::Local, Source::Open, Source::Open],
        ),
        (vec![local.key("x"), open.key("x")], true, vec![Source::Local; 2]),
        (vec![local.key("x"), open.key("x")], false, vec![Source::Local; 2]),
    ] {
        let all = limiter.check_all(checks).await.unwrap();
        let found: Vec<_> = all.each_alone().iter().map(Decision::source).collect();
        assert_eq!((all.is_allowed(), found), (is_allowed, sources));
    }
}

#[tokio::test]
async fn cancelled_wait_gives_its_place_in_the_queue_back_to_the_fallback() {
    let limiter = without_redis().instances(1).build().unwrap();
    let gate = limiter.gate("queue", Quota::leaky_bucket(10, Rate::per_hour(1)));
    assert!(gate.check_cost("x", 2).await.unwrap().is_allowed());
    let remaining = async || gate.peek("x").await.unwrap().remaining();
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.until_allowed("x", 5 * HOUR).await }
    });
    soon("the place is taken", async || remaining().await == 7).await;
    waiting.abort();
    soon("the place is given back", async || remaining().await == 8).await;
}

#[tokio::test]
async fn denied_reservation_gives_back_what_a_gate_in_shadow_mode_charged_to_the_fallback() {
    let limiter = without_redis().instances(1).build().unwrap();
    let tried = limiter.gate("tried", Quota::fixed_window(9, HOUR)).shadow(true);
    let narrow = limiter.gate("narrow", Quota::fixed_window(2, HOUR));
    assert_eq!(pass_locally(&narrow, "x", 2).await, 2);
    let denied = limiter.reserve([tried.key("x").cost(4), narrow.key("x")]).await.unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(tried.peek("x").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn fallback_starts_from_the_last_state_that_redis_reported() {
    let server = Server::process(&[]).unwrap();
    let limiter = settings(&server).instances(2).build().unwrap();
    for (name, quota) in long_quotas(20) {
        let gate = limiter.gate(name, quota);
        for _ in 0..15 {
            assert_eq!(gate.key("key").deadline(HOUR).check().await.unwrap().source(), Source::Redis);
        }
        // On a busy machine, an attempt may exceed the limiter's deadline.
        soon("the key is blocked", async || gate.block("blocked", HOUR).await.is_ok()).await;
        assert!(!gate.key("blocked").deadline(HOUR).check().await.unwrap().is_allowed());
    }
    let _paused = Paused::new(&server);
    for (name, quota) in long_quotas(20) {
        let gate = limiter.gate(name, quota);
        // Of the 15 units used of 20, the part that counts against the share of 10 is 8, rounded up.
        assert_eq!(pass_locally(&gate, "key", 10).await, 2, "{quota}");
        let blocked = gate.check("blocked").await.unwrap();
        assert!(!blocked.is_allowed() && blocked.retry_after() > HOUR / 2, "{quota}: {blocked}");
    }
}

#[tokio::test]
async fn units_admitted_by_the_fallback_are_charged_when_redis_replies_again() {
    let server = Server::process(&[]).unwrap();
    let limiter = settings(&server).instances(2).build().unwrap();
    soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    let paused = Paused::new(&server);
    for (name, quota) in long_quotas(20) {
        let gate = limiter.gate(name, quota);
        assert_eq!(pass_locally(&gate, "key", 4).await, 4);
        assert_eq!(pass_locally(&gate, "other", 15).await, 10);
    }
    drop(paused);
    for (name, quota) in long_quotas(20) {
        let gate = limiter.gate(name, quota);
        soon("the units are charged", async || {
            let [key, other] = [gate.peek("key").await.unwrap(), gate.peek("other").await.unwrap()];
            // A check whose reply was lost may have been charged too, so more units than expected can be
            // used.
            let is_charged = key.remaining() <= 16 && other.remaining() <= 10;
            key.source() == Source::Redis && other.source() == Source::Redis && is_charged
        })
        .await;
    }
}

/// If a process forgot the charges that Redis rejects, it would start with a full share again and again.
#[tokio::test]
async fn charges_that_redis_rejects_stay_pending_until_it_accepts_them() {
    let server = Server::process(&[]).unwrap();
    let limiter = settings(&server).deadline(PATIENCE).instances(2).build().unwrap();
    soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let gates = quotas(20, 24 * HOUR).map(|(name, quota)| limiter.gate(name, quota));
    let start = Instant::now();
    let mut passed = 0;
    // One second covers several attempts to charge Redis.
    while start.elapsed() < Duration::from_secs(1) {
        for gate in &gates {
            passed += pass_locally(gate, "key", 1).await;
        }
    }
    assert_eq!(passed, 6 * 10);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    for gate in &gates {
        soon("the units are charged", async || gate.peek("key").await.unwrap().remaining() == 10).await;
    }
}

#[tokio::test]
async fn consecutive_outages_admit_no_more_than_one() {
    let server = Server::process(&[]).unwrap();
    let limiter = || settings(&server).namespace("several").instances(2);
    let other = limiter().deadline(PATIENCE).build().unwrap();
    let limiter = limiter().build().unwrap();
    soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    for (outage, passes) in [10, 0, 0].into_iter().enumerate() {
        let paused = Paused::new(&server);
        for (name, quota) in long_quotas(20) {
            assert_eq!(
                pass_locally(&limiter.gate(name, quota), "key", 12).await,
                passes,
                "{quota}, {outage}"
            );
        }
        drop(paused);
        for (name, quota) in long_quotas(20) {
            let gate = other.gate(name, quota);
            soon("the units are charged", async || gate.peek("key").await.unwrap().remaining() <= 10).await;
        }
        soon("Redis decides again", async || limiter.ready().await.is_ok()).await;
    }
}

#[tokio::test]
async fn processes_count_the_fleet_through_redis() {
    let server = Server::process(&[]).unwrap();
    let namespace = "counted";
    let limiter = || settings(&server).namespace(namespace).deadline(HOUR).build().unwrap();
    let fleet: Vec<Limiter> = (0..3).map(|_| limiter()).collect();
    let quota = Quota::fixed_window(30, 24 * HOUR);
    for limiter in &fleet {
        soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    }
    let is_counted = async || fleet.iter().all(|limiter| format!("{limiter:?}").contains("instances: 3"));
    soon("all processes are counted", is_counted).await;
    let key = format!("{namespace}:1:instances");
    assert_eq!(server.cli(&["ZCARD", &key]).unwrap(), "(integer) 3");
    let ttl = server.cli(&["PTTL", &key]).unwrap();
    let ttl: u64 = ttl.trim_start_matches("(integer) ").parse().unwrap();
    assert!((1..=15_001).contains(&ttl), "{ttl}");
    // Each of the three processes therefore has a third of the quota.
    let _paused = Paused::new(&server);
    let gate = fleet[0].gate("gate", quota);
    let mut passed = 0;
    for _ in 0..30 {
        let decision = gate.key("key").deadline(Duration::from_millis(5)).check().await.unwrap();
        assert_eq!(decision.source(), Source::Local);
        passed += u64::from(decision.is_allowed());
    }
    assert_eq!(passed, 10);
}

#[tokio::test]
async fn random_keys_do_not_grow_the_fallback_beyond_its_bound() {
    let limiter = without_redis().instances(1).max_keys(1_000).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(5, HOUR));
    for key in 0..20_000 {
        assert!(gate.check(key.to_string()).await.unwrap().is_allowed());
    }
    let debug = format!("{limiter:?}");
    let keys: usize =
        debug.split("keys: ").nth(1).unwrap().split([' ', ',', '}']).next().unwrap().parse().unwrap();
    assert!(keys <= 1_000, "{debug}");
}

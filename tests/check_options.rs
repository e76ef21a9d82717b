//! A check offers each operation with each of its options.

use std::time::Duration;

use tidegate::{AllDecision, Builder, Limiter, ManualClock, OnFailure, Quota, Rate, Source};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder, builder_as_is, calls, limiter, quotas, soon};

const KEY: &str = "user:42:secret";

#[tokio::test]
async fn check_peeks_reserves_and_checks_with_its_cost() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        for (name, quota) in quotas(10, 100 * HOUR) {
            let gate = limiter.gate(name, quota);
            let four = || gate.key(KEY).cost(4).deadline(HOUR);
            assert!(four().peek().await.unwrap().is_allowed(), "{quota}");
            let reservation = four().reserve().await.unwrap();
            assert_eq!((reservation.charged_units(), reservation.decision().remaining()), (4, 6), "{quota}");
            reservation.commit(3).await.unwrap();
            assert_eq!(four().check().await.unwrap().remaining(), 3, "{quota}");
            let denied = four().peek().await.unwrap();
            assert!(!denied.is_allowed() && denied.retry_after() > Duration::ZERO, "{quota}");
            assert!(gate.key(KEY).cost(3).peek().await.unwrap().is_allowed(), "{quota}");
            assert!(gate.key(KEY).cost(0).peek().await.unwrap().is_allowed(), "{quota}");
            assert_eq!(gate.peek(KEY).await.unwrap().remaining(), 3, "{quota}: a peek charges nothing");
        }
    }
}

#[tokio::test]
async fn peek_at_a_gate_in_shadow_mode_tells_what_a_check_of_its_cost_would() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let gate = limiter.gate("gate", Quota::fixed_window(4, HOUR)).shadow(true);
        for (cost, is_denied) in [(4, false), (5, true)] {
            let peeked = gate.key(KEY).cost(cost).peek().await.unwrap();
            assert_eq!((peeked.is_allowed(), peeked.is_shadow()), (true, is_denied), "cost {cost}");
        }
        assert!(!gate.key(KEY).cost(3).check().await.unwrap().is_shadow());
        let (peeked, left) = (gate.key(KEY).cost(2).peek().await.unwrap(), gate.peek(KEY).await.unwrap());
        assert_eq!((peeked.is_allowed(), peeked.is_shadow(), left.remaining()), (true, true, 1));
    }
}

#[tokio::test]
async fn check_waits_until_its_cost_is_admitted() {
    let clock = ManualClock::new();
    let gate =
        Limiter::in_memory_with(clock.clone()).gate("gate", Quota::token_bucket(4, Rate::per_second(1)));
    assert!(gate.check_cost(KEY, 4).await.unwrap().is_allowed());
    let too_long = gate.key(KEY).cost(3).until_allowed(Duration::from_millis(2_999)).await.unwrap();
    assert_eq!((too_long.is_allowed(), too_long.retry_after()), (false, Duration::from_secs(3)));
    let waiting = tokio::spawn(gate.key(KEY).cost(3).until_allowed(Duration::from_secs(3)));
    // Advances the clock only as far as the check needs.
    for _ in 0..3 {
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        clock.advance(Duration::from_secs(1));
    }
    assert!(waiting.await.unwrap().unwrap().is_allowed());
    assert_eq!(gate.peek(KEY).await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn dropped_wait_gives_all_places_of_its_cost_back() {
    let clock = ManualClock::new();
    let gate = Limiter::in_memory_with(clock).gate("gate", Quota::leaky_bucket(10, Rate::per_minute(1)));
    let mut waiting = Box::pin(gate.key(KEY).cost(4).until_allowed(HOUR));
    assert!(gate.check(KEY).await.unwrap().is_allowed());
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert_eq!(gate.peek(KEY).await.unwrap().remaining(), 5);
    drop(waiting);
    soon("the places are back", async || gate.peek(KEY).await.unwrap().remaining() == 9).await;
}

#[tokio::test]
async fn independent_checks_have_costs_of_their_own() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let gate = limiter.gate("gate", Quota::fixed_window(5, HOUR));
        let checks = [("a", 3), ("b", 1), ("a", 3), ("a", 2)].map(|(key, cost)| gate.key(key).cost(cost));
        let decided = limiter.check_each(checks).await.into_iter().map(|decided| decided.unwrap());
        let remaining: Vec<_> = decided.map(|it| (it.is_allowed(), it.remaining())).collect();
        assert_eq!(remaining, [(true, 2), (true, 4), (false, 2), (true, 0)]);
    }
}

#[tokio::test]
async fn group_tells_the_check_that_binds_and_its_redacted_key() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let user = limiter.gate("user", Quota::fixed_window(1, HOUR));
        let all = limiter.gate("all", Quota::fixed_window(100, HOUR));
        let check = async || limiter.check_all([all.key(""), user.key(KEY)]).await.unwrap();
        let bound = |all: &AllDecision| {
            let key = all.binding_key().unwrap().to_string();
            (all.binding_index(), all.binding().gate().to_owned(), key)
        };
        let expected = (1, "user".to_owned(), "\"us…\" (14 bytes)".to_owned());
        let allowed = check().await;
        assert_eq!((allowed.is_allowed(), bound(&allowed)), (true, expected.clone()));
        assert_eq!(
            allowed.to_string(),
            "allowed, 0 of 1 left at check 1 (gate \"user\", key \"us…\" (14 bytes))"
        );
        let denied = check().await;
        assert_eq!((denied.is_allowed(), bound(&denied)), (false, expected));
        let text = denied.to_string();
        let start = "denied by check 1 (gate \"user\", key \"us…\" (14 bytes)), retry after ";
        assert!(text.starts_with(start), "{text}");
        assert!(!format!("{denied:?}").contains("secret"));
        // The gate for all would have admitted the check. The name of the accessor says so.
        let alone: Vec<bool> = denied.each_alone().iter().map(|decision| decision.is_allowed()).collect();
        assert_eq!(alone, [true, false]);
        assert_eq!(all.peek("").await.unwrap().remaining(), 99);
        let independent = AllDecision::of_each(denied.into_each_alone());
        assert_eq!(independent.binding_key(), None);
        assert!(independent.to_string().starts_with("denied by check 1 (gate \"user\"), retry after "));
    }
}

#[tokio::test]
async fn aged_decision_of_a_group_keeps_its_wait_and_its_binding_check() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let shadow = limiter.gate("shadow", Quota::fixed_window(1, HOUR)).shadow(true);
    let user = limiter.gate("user", Quota::token_bucket(1, Rate::new(1, Duration::from_secs(10))));
    let check = async || limiter.check_all([shadow.key(""), user.key(KEY)]).await.unwrap();
    assert!(check().await.is_allowed());
    let denied = check().await;
    let age = Duration::from_secs(3);
    let aged = denied.clone().aged(age);
    assert_eq!((denied.retry_after(), aged.retry_after()), (Duration::from_secs(10), Duration::from_secs(7)));
    assert_eq!((aged.is_allowed(), aged.binding_index()), (false, 1));
    assert_eq!(aged.binding_key().map(|key| key.to_string()), Some("\"us…\" (14 bytes)".to_owned()));
    let alone = denied.each_alone().iter().map(|decision| decision.clone().aged(age));
    assert!(alone.eq(aged.each_alone().iter().cloned()));
    assert_eq!(
        aged.each_alone()[0].retry_after(),
        HOUR - age,
        "a gate in shadow mode does not prolong the wait"
    );
    assert_eq!(aged.aged(HOUR).retry_after(), Duration::ZERO);
}

#[test]
fn fallible_twin_of_aligned_to_clock_returns_the_same_quota_or_an_error() {
    let fixed = Quota::fixed_window(5, HOUR);
    assert_eq!(fixed.try_aligned_to_clock().unwrap(), fixed.aligned_to_clock());
    assert!(Quota::sliding_log(5, HOUR).try_aligned_to_clock().unwrap_err().is_config());
}

#[tokio::test]
async fn strict_limiter_returns_only_what_redis_decided() {
    let server = Server::process(&[]).unwrap();
    let strict =
        |builder: Builder| builder.namespace("strict").strict().publish_figures(false).build().unwrap();
    let operator = strict(builder_as_is(server.url()));
    operator.control().switch("gate", tidegate::Switch::Closed, None).await.unwrap();
    let limiter = strict(builder_as_is(server.url()));
    let gate = limiter.gate("gate", Quota::fixed_window(1, HOUR));
    let before = calls(&server, "evalsha") + calls(&server, "eval");
    for is_allowed in [true, false, false, false] {
        let decision = gate.check(KEY).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.source()), (is_allowed, Source::Redis));
    }
    let sent = calls(&server, "evalsha") + calls(&server, "eval") - before;
    // The first script call replies NOSCRIPT. No other call is made: neither heartbeats nor reads of overrides.
    assert!((4..=5).contains(&sent), "{sent} calls");

    let url = server.url().to_owned();
    drop(server);
    let gate = strict(builder(&url).on_failure(OnFailure::Open)).gate("gate", Quota::fixed_window(1, HOUR));
    for _ in 0..20 {
        let error = gate.check(KEY).await.unwrap_err();
        assert!(error.is_unavailable() && !error.to_string().contains("breaker"), "{error}");
    }
    assert_eq!(limiter.health().await.instances(), 1);
}

//! A gate in shadow mode allows every check, even if the limiter cannot decide the check.

use std::time::Duration;

use tidegate::{AllDecision, Decision, Gate, Limiter, Quota, Rate, Source, Switch};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder};

const QUOTA: Quota = Quota::fixed_window(2, HOUR);

/// Returns a gate in shadow mode whose key `x` holds a value that tidegate never writes, and another gate.
async fn corrupt(server: &Server) -> (Limiter, Gate, Gate) {
    let limiter = builder(server.url()).build().unwrap();
    let (shadow, other) = (limiter.gate("shadow", QUOTA), limiter.gate("other", QUOTA));
    server.cli(&["SADD", &shadow.redis_key("x").unwrap(), "garbage"]).unwrap();
    assert!(shadow.check("x").await.unwrap_err().is_corrupt_state());
    limiter.control().switch("shadow", Switch::Shadow, None).await.unwrap();
    (limiter, shadow, other)
}

fn is_open(decision: &Decision) -> bool {
    decision.is_allowed() && decision.source() == Source::Open
}

#[tokio::test]
async fn an_error_of_a_gate_in_shadow_does_not_fail_the_group() {
    let server = Server::process(&[]).unwrap();
    let (limiter, shadow, other) = corrupt(&server).await;
    for remaining in [1, 0] {
        let all = limiter.check_all([other.key("x"), shadow.key("x")]).await.unwrap();
        assert!(all.is_allowed() && is_open(&all.each_alone()[1]));
        assert_eq!((all.binding().gate(), all.binding().remaining()), ("other", remaining));
    }
    let all = limiter.check_all([shadow.key("x"), other.key("x")]).await.unwrap();
    assert_eq!((all.is_allowed(), all.binding().gate()), (false, "other"));
}

#[tokio::test]
async fn a_cost_above_the_limit_of_a_gate_in_shadow_does_not_fail_the_group() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).build().unwrap();
    let (shadow, other) = (limiter.gate("shadow", QUOTA), limiter.gate("other", QUOTA));
    limiter.control().switch("shadow", Switch::Shadow, None).await.unwrap();
    let all = limiter.check_all([other.key("x"), shadow.key("x").cost(3)]).await.unwrap();
    assert!(all.is_allowed() && is_open(&all.each_alone()[1]));
    assert_eq!(other.peek("x").await.unwrap().remaining(), 1);
}

#[tokio::test]
async fn an_error_of_a_gate_in_shadow_fails_no_check_of_it_alone() {
    let server = Server::process(&[]).unwrap();
    let (_limiter, shadow, _) = corrupt(&server).await;
    assert!(is_open(&shadow.check("x").await.unwrap()));
    assert!(is_open(&shadow.check_many(["x"]).await[0].clone().unwrap()));
    assert!(is_open(&shadow.peek("x").await.unwrap()));
}

#[tokio::test]
async fn a_gate_that_is_set_to_shadow_admits_a_check_that_it_cannot_decide() {
    let limiter = Limiter::in_memory();
    let (shadow, other) = (limiter.gate("shadow", QUOTA).shadow(true), limiter.gate("other", QUOTA));
    let all = limiter.check_all([other.key("x"), shadow.key("x").cost(3)]).await.unwrap();
    assert!(all.is_allowed() && is_open(&all.each_alone()[1]));
    assert_eq!(other.peek("x").await.unwrap().remaining(), 1);
    let alone = shadow.check_cost("x", 3).await.unwrap();
    assert!(is_open(&alone) && alone.is_shadow(), "marked as a denial");
}

#[tokio::test]
async fn a_gate_in_shadow_that_is_switched_closed_denies_alone_and_in_a_group() {
    let limiter = Limiter::in_memory();
    let (shadow, other) = (limiter.gate("shadow", QUOTA).shadow(true), limiter.gate("other", QUOTA));
    limiter.control().switch("shadow", Switch::Closed, None).await.unwrap();
    let alone = shadow.check("x").await.unwrap();
    assert!(!alone.is_allowed() && alone.source() == Source::Switch);
    assert!(!shadow.check_many(["x"]).await[0].clone().unwrap().is_allowed());
    let all = limiter.check_all([other.key("x"), shadow.key("x")]).await.unwrap();
    assert_eq!((all.is_allowed(), all.binding().gate()), (false, "shadow"));
    assert_eq!(other.peek("x").await.unwrap().remaining(), 2);
}

#[tokio::test]
async fn a_gate_in_shadow_with_an_invalid_name_fails_a_group_before_it_is_charged() {
    let limiter = Limiter::in_memory();
    let (shadow, other) = (limiter.gate("No Name", QUOTA).shadow(true), limiter.gate("other", QUOTA));
    let error = limiter.check_all([other.key("x"), shadow.key("x")]).await.unwrap_err();
    assert!(error.is_config());
    assert_eq!(other.peek("x").await.unwrap().remaining(), 2);
}

#[tokio::test]
async fn an_in_flight_limit_in_shadow_that_is_checked_fails_a_group_before_it_is_charged() {
    let limiter = Limiter::in_memory();
    let (shadow, other) =
        (limiter.gate("shadow", Quota::in_flight(2)).shadow(true), limiter.gate("other", QUOTA));
    let error = limiter.check_all([other.key("x"), shadow.key("x")]).await.unwrap_err();
    assert!(error.is_config(), "{error}");
    let reserved = limiter.reserve([other.key("x"), shadow.key("x")]).await;
    assert!(reserved.unwrap_err().is_config());
    assert_eq!(other.peek("x").await.unwrap().remaining(), 2);
}

#[tokio::test]
async fn a_denial_in_shadow_mode_adds_no_wait_to_independent_decisions() {
    let limiter = Limiter::in_memory();
    let shadow = limiter.gate("shadow", Quota::fixed_window(1, HOUR)).shadow(true);
    let other = limiter.gate("other", Quota::token_bucket(1, Rate::per_second(1)));
    for is_allowed in [true, false] {
        let all = AllDecision::of_each([shadow.check("x").await.unwrap(), other.check("x").await.unwrap()]);
        assert_eq!(all.is_allowed(), is_allowed);
        assert!(is_allowed || all.retry_after() <= Duration::from_secs(1), "{all}");
    }
}

//! Stub limiters, and the results of checks while Redis is unavailable.

use std::time::Duration;

use tidegate::{Decision, Error, Limiter, OnFailure, Quota, Source, Stub};
use tokio::time::Instant;

use crate::support::fixture::{HOUR, builder, closed_port, quotas};

const DEADLINE: Duration = Duration::from_millis(100);
const QUOTA: Quota = Quota::fixed_window(5, HOUR);

async fn check_of(stub: Stub) -> Result<Decision, Error> {
    Limiter::stub(stub).gate("login", QUOTA).check("user:42").await
}

#[tokio::test]
async fn stub_that_allows_admits_everything() {
    let gate = Limiter::stub(Stub::Allow).gate("login", QUOTA);
    for _ in 0..10 {
        let decision = gate.check("user:42").await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!((decision.source(), decision.limit(), decision.remaining()), (Source::Open, 5, 5));
    }
}

#[tokio::test]
async fn stub_that_denies_admits_nothing() {
    let decision = check_of(Stub::Deny).await.unwrap();
    assert!(!decision.is_allowed() && decision.retry_after() > Duration::ZERO);
    assert_eq!((decision.source(), decision.limit(), decision.remaining()), (Source::Closed, 5, 0));
}

#[tokio::test]
async fn stub_decides_the_same_under_every_failure_policy() {
    for (stub, allowed) in [(Stub::Allow, true), (Stub::Deny, false)] {
        let limiter = Limiter::stub(stub);
        limiter.ready().await.unwrap();
        for on_failure in [OnFailure::Error, OnFailure::Open, OnFailure::Closed] {
            let gate = limiter.gate("login", QUOTA).on_failure(on_failure);
            assert_eq!(gate.check("user:42").await.unwrap().is_allowed(), allowed);
            gate.reserve("user:42", 2).await.unwrap().commit(1).await.unwrap();
            gate.penalize("user:42", 1).await.unwrap();
            gate.block("user:42", HOUR).await.unwrap();
            gate.reset("user:42").await.unwrap();
        }
    }
}

#[tokio::test]
async fn failure_policy_admits_nothing_after_shutdown() {
    let limiter = Limiter::builder().in_memory().on_failure(OnFailure::Open).build().unwrap();
    let gate = limiter.gate("login", QUOTA);
    assert!(gate.check("user:42").await.unwrap().is_allowed());
    limiter.shutdown().await;
    assert!(gate.check("user:42").await.unwrap_err().is_shut_down());
    assert!(limiter.check_all([gate.key("user:42")]).await.unwrap_err().is_shut_down());
    assert!(gate.refund("user:42", 1).await.unwrap_err().is_shut_down());
}

#[tokio::test]
async fn stub_that_fails_is_unavailable_at_once() {
    let error = check_of(Stub::Fail).await.unwrap_err();
    assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
    assert!(Limiter::stub(Stub::Fail).ready().await.unwrap_err().is_unavailable());
}

#[tokio::test(start_paused = true)]
async fn stub_that_hangs_times_out_exactly_at_the_deadline() {
    let limiter = Limiter::stub(Stub::Hang);
    let gate = limiter.gate("login", QUOTA);
    for own in [None, Some(Duration::from_millis(30)), Some(2 * HOUR)] {
        let check = gate.key("user:42");
        let start = Instant::now();
        let error = own.map_or(check.clone(), |own| check.deadline(own)).check().await.unwrap_err();
        assert!(error.is_timeout() && error.is_unavailable(), "{error}");
        // The timer of the runtime has a resolution of 1 ms and rounds up.
        let (took, expected) = (start.elapsed(), own.unwrap_or(DEADLINE));
        assert!(took >= expected && took <= expected + Duration::from_millis(1), "{took:?} for {expected:?}");
    }
    let start = Instant::now();
    assert!(gate.refund("user:42", 1).await.unwrap_err().is_timeout());
    assert!(limiter.ready_within(DEADLINE).await.unwrap_err().is_timeout());
    let both = [gate.key("x"), gate.key("y").deadline(DEADLINE / 2)];
    assert!(limiter.check_all(both).await.unwrap_err().is_timeout(), "the shortest deadline counts");
    let took = start.elapsed();
    assert!(took >= DEADLINE * 5 / 2 && took <= DEADLINE * 5 / 2 + Duration::from_millis(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn failure_policy_of_a_gate_applies_to_a_stub_that_hangs() {
    let gate = Limiter::stub(Stub::Hang).gate("login", QUOTA).on_failure(OnFailure::Closed);
    assert_eq!(gate.check("user:42").await.unwrap().source(), Source::Closed);
}

#[tokio::test]
async fn failure_policy_decides_while_redis_is_unreachable() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    for (name, quota) in quotas(5, HOUR) {
        for policy in [OnFailure::Error, OnFailure::Open, OnFailure::Closed] {
            let by_limiter = builder(&url).on_failure(policy).build().unwrap();
            let by_gate = builder(&url).on_failure(OnFailure::Closed).build().unwrap();
            for (limiter, gate) in [
                (&by_limiter, by_limiter.gate(name, quota)),
                (&by_gate, by_gate.gate(name, quota).on_failure(policy)),
            ] {
                let decisions = [
                    gate.check("x").await,
                    gate.check_cost("x", 5).await,
                    gate.peek("x").await,
                    gate.check_many(["x"]).await.remove(0),
                    limiter.check_all([gate.key("x"), gate.key("y")]).await.map(|all| all.binding().clone()),
                    gate.reserve("x", 3).await.map(|reservation| reservation.decision().clone()),
                    gate.until_allowed("x", Duration::ZERO).await,
                ];
                for decision in decisions {
                    match (policy, decision) {
                        (OnFailure::Error, Err(error)) => assert!(error.is_unavailable(), "{error}"),
                        (OnFailure::Open, Ok(decision)) => {
                            assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Open));
                            assert_eq!((decision.limit(), decision.remaining()), (5, 5));
                        }
                        (OnFailure::Closed, Ok(decision)) => {
                            assert_eq!((decision.is_allowed(), decision.source()), (false, Source::Closed));
                            assert_eq!((decision.limit(), decision.remaining()), (5, 0));
                            assert_eq!(decision.retry_after(), Duration::from_secs(1));
                        }
                        (policy, other) => panic!("{policy:?}: {other:?}"),
                    }
                }
                assert!(
                    gate.refund("x", 1).await.unwrap_err().is_unavailable(),
                    "no failure policy applies to a write"
                );
                let over = gate.check_cost("x", 6).await.unwrap_err();
                assert!(
                    over.is_over_capacity(),
                    "a cost above the limit is an error under every policy: {over}"
                );
            }
        }
    }
}

#[tokio::test]
async fn each_gate_of_a_group_uses_its_own_failure_policy() {
    let limiter = builder(&format!("redis://127.0.0.1:{}", closed_port())).build().unwrap();
    let [error, open, closed] = [OnFailure::Error, OnFailure::Open, OnFailure::Closed]
        .map(|policy| limiter.gate("login", QUOTA).on_failure(policy));
    assert!(limiter.check_all([open.key("x"), error.key("y")]).await.unwrap_err().is_unavailable());
    let all = limiter.check_all([open.key("x"), closed.key("y")]).await.unwrap();
    assert!(!all.is_allowed());
    assert_eq!(all.binding().source(), Source::Closed);
    assert!(limiter.check_all([open.key("x"), open.key("y")]).await.unwrap().is_allowed());
}

#[tokio::test]
async fn units_admitted_without_redis_are_not_refunded_to_it() {
    let server = tidegate_testkit::shared();
    let mut reservations = Vec::new();
    for (url, policy) in [
        (server.url().to_owned(), OnFailure::Error),
        (format!("redis://127.0.0.1:{}", closed_port()), OnFailure::Open),
    ] {
        let gate = builder(&url).on_failure(policy).build().unwrap().gate("login", QUOTA);
        reservations.push((gate.clone(), gate.reserve("x", 3).await.unwrap()));
    }
    let (_, open) = reservations.pop().unwrap();
    open.cancel().await.expect("no unit was charged, so no refund is sent");
    let (gate, taken) = reservations.pop().unwrap();
    taken.cancel().await.unwrap();
    assert_eq!(gate.peek("x").await.unwrap().remaining(), 5);
}

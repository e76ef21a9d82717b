//! Invalid reservations, gates that operators have switched or overridden, and stubs.

use std::time::Duration;

use tidegate::{Limiter, Quota, Rate, Settlement, Source, Stub, Switch};

use crate::support::fixture::{HOUR, builder, namespace, soon};

const QUOTA: Quota = Quota::token_bucket(1_000, Rate::per_hour(1));

#[tokio::test]
async fn invalid_reservation_is_an_error_that_says_what_to_do() {
    let limiter = Limiter::in_memory();
    let gate = limiter.gate("tokens", QUOTA);
    let check = || [gate.key("acme").cost(10)];
    for ttl in [Duration::ZERO, Duration::from_millis(999), Duration::from_millis(86_400_001), Duration::MAX]
    {
        let error = limiter.reserve(check()).ttl(ttl).await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains("1 s to 24 h"), "{error}");
    }
    for ttl in [Duration::from_secs(1), Duration::from_secs(86_400)] {
        assert!(limiter.reserve(check()).ttl(ttl).await.unwrap().is_allowed());
    }
    let foreign = Limiter::in_memory().gate("tokens", QUOTA);
    assert!(limiter.reserve([foreign.key("acme")]).await.unwrap_err().is_config());
    assert!(limiter.reserve(Vec::<tidegate::Check>::new()).await.unwrap_err().is_config());
    assert!(limiter.reserve(vec![gate.key("acme"); 129]).await.unwrap_err().is_config());
    assert!(limiter.reserve([limiter.gate("Bad Name", QUOTA).key("acme")]).await.unwrap_err().is_config());
    let reserved = limiter.reserve(check()).await.unwrap();
    for actuals in [vec![], vec![1, 2]] {
        let error = limiter.commit(reserved.token().unwrap(), actuals).await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains("1 checks"), "{error}");
    }
    let largest = limiter.commit(reserved.token().unwrap(), [u64::MAX]).await.unwrap();
    assert_eq!(largest, [Settlement::Settled]);
    assert_eq!(gate.peek("acme").await.unwrap().remaining(), 0);
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn keys_in_different_slots_are_an_error_before_anything_is_charged() {
    let cluster = tidegate_testkit::shared_cluster();
    let limiter = Limiter::builder().cluster(cluster.urls()).namespace(&namespace()).build().unwrap();
    let gate = limiter.gate("tokens", QUOTA);
    let checks: Vec<_> = (0..8).map(|user| gate.key(user)).collect();
    let error = limiter.reserve(&checks).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("colocate_with"), "{error}");
}

#[tokio::test]
async fn switched_gate_is_not_charged() {
    let limiter = Limiter::in_memory();
    let (open, other) = (limiter.gate("open", QUOTA), limiter.gate("other", QUOTA));
    let checks = || [open.key("acme").cost(10), other.key("acme").cost(10)];
    limiter.control().switch("open", Switch::Open, None).await.unwrap();
    let reserved = limiter.reserve(checks()).await.unwrap();
    assert_eq!(reserved.decision().each_alone()[0].source(), Source::Switch);
    limiter.control().switch("open", Switch::Closed, None).await.unwrap();
    assert!(limiter.reserve(checks()).await.unwrap().token().is_none());
    limiter.control().end_switch("open").await.unwrap();
    let settled = limiter.commit(reserved.token().unwrap(), [500, 3]).await.unwrap();
    assert_eq!(settled, [Settlement::Nothing, Settlement::Settled]);
    assert_eq!(open.peek("acme").await.unwrap().remaining(), 1_000);
    assert_eq!(other.peek("acme").await.unwrap().remaining(), 997);
}

/// The override names another algorithm, so its state has another key.
#[tokio::test]
async fn commit_reaches_the_state_that_was_charged_after_an_override_has_ended() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).build().unwrap();
    let (gate, control) = (limiter.gate("tokens", QUOTA), limiter.control());
    let overridden = Quota::fixed_window(50, 24 * HOUR);
    control.set_override("tokens", "acme", overridden, HOUR).await.unwrap();
    let used = async || {
        let decision = gate.peek("acme").await.unwrap();
        (decision.limit(), decision.limit() - decision.remaining())
    };
    soon("the override is active", async || used().await.0 == 50).await;
    let reserved = limiter.reserve([gate.key("acme").cost(40)]).await.unwrap();
    assert_eq!(used().await, (50, 40));
    control.end_override("tokens", "acme").await.unwrap();
    soon("the override has ended", async || used().await.0 == 1_000).await;
    assert_eq!(limiter.commit(reserved.token().unwrap(), [7]).await.unwrap(), [Settlement::Settled]);
    assert_eq!(used().await, (1_000, 0));
    control.set_override("tokens", "acme", overridden, HOUR).await.unwrap();
    soon("7 of the 40 units stay charged", async || used().await == (50, 7)).await;
}

#[tokio::test]
async fn stubs_decide_reservations() {
    for (stub, is_allowed) in [(Stub::Allow, Some(true)), (Stub::Deny, Some(false)), (Stub::Fail, None)] {
        let limiter = Limiter::stub(stub);
        let gate = limiter.gate("tokens", QUOTA);
        let reserved = limiter.reserve([gate.key("acme").cost(10)]).await.ok();
        assert_eq!(reserved.as_ref().map(|reserved| reserved.is_allowed()), is_allowed, "{stub:?}");
        if let Some(token) = reserved.as_ref().and_then(|reserved| reserved.token()) {
            assert!(limiter.commit(token, [3]).await.is_ok());
        }
    }
}

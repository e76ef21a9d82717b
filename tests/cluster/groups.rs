//! Several checks in one atomic step: keys in the same slot, and keys in different slots.

use tidegate::{Gate, Limiter, Quota};

use super::{MINUTE, builder};

fn gates(limiter: &Limiter) -> (Gate, Gate) {
    (
        limiter.gate("tenants", Quota::fixed_window(3, MINUTE)),
        limiter.gate("users", Quota::sliding_log(2, MINUTE)),
    )
}

#[tokio::test]
async fn keys_in_one_slot_are_decided_in_one_step() {
    let cluster = tidegate_testkit::shared_cluster();
    let limiter = builder(&cluster).build().unwrap();
    let (tenants, users) = gates(&limiter);
    let user = |user: &str| users.key(user).colocate_with("tenant:7");
    for (name, is_allowed) in [("ann", true), ("ann", true), ("ann", false), ("bob", true), ("bob", false)] {
        let decision = limiter.check_all([tenants.key("tenant:7"), user(name)]).await.unwrap();
        assert_eq!(decision.is_allowed(), is_allowed, "{name}");
    }
    // A denial by one gate charges no gate.
    assert_eq!(tenants.peek("tenant:7").await.unwrap().remaining(), 0);
    assert_eq!(user("bob").cost(0).check().await.unwrap().remaining(), 1);
    assert_eq!(user("ann").cost(0).check().await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn keys_in_different_slots_are_rejected_before_sending() {
    // No server listens there, so a call that is sent would fail with another kind of error.
    let builder = Limiter::builder().cluster(["redis://127.0.0.1:1"]).stderr_warnings(false);
    let limiter = builder.on_failure(tidegate::OnFailure::Error).build().unwrap();
    let (tenants, users) = gates(&limiter);
    let error = limiter.check_all([tenants.key("tenant:7"), users.key("ann")]).await.unwrap_err();
    assert!(error.is_config(), "{error}");
    assert!(error.to_string().contains("the same key") && error.to_string().contains("beside"), "{error}");
    assert_eq!((error.gate(), error.key()), (Some("users"), Some(&b"ann"[..])));
    let same = limiter.check_all([tenants.key("ann"), users.key("ann")]).await.unwrap_err();
    assert!(same.is_unavailable(), "{same}");
}

#[tokio::test]
async fn colocation_has_no_effect_without_a_cluster() {
    let server = tidegate_testkit::shared();
    for limiter in [crate::support::fixture::limiter(&server), Limiter::in_memory()] {
        let (_, users) = gates(&limiter);
        assert!(users.key("ann").colocate_with("tenant:7").check().await.unwrap().is_allowed());
        assert!(users.check("ann").await.unwrap().is_allowed());
        assert!(!users.key("ann").colocate_with("tenant:8").check().await.unwrap().is_allowed());
    }
}

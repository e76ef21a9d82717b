//! Several asks in one atomic step: in one slot, and not in one.

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
    let cluster = harness::shared_cluster();
    let limiter = builder(&cluster).build().unwrap();
    let (tenants, users) = gates(&limiter);
    let user = |user: &str| users.ask(user).beside("tenant:7");
    for (name, is_allowed) in [("ann", true), ("ann", true), ("ann", false), ("bob", true), ("bob", false)] {
        let decision = limiter.check_all([tenants.ask("tenant:7"), user(name)]).await.unwrap();
        assert_eq!(decision.is_allowed(), is_allowed, "{name}");
    }
    // Denied by one, charged to none.
    assert_eq!(tenants.peek("tenant:7").await.unwrap().remaining(), 0);
    assert_eq!(user("bob").cost(0).check().await.unwrap().remaining(), 1);
    assert_eq!(user("ann").cost(0).check().await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn keys_in_different_slots_are_refused_before_anything_is_sent() {
    // Nobody listens there: what is sent would be an error of another kind.
    let builder = Limiter::builder().cluster(["redis://127.0.0.1:1"]);
    let limiter = builder.on_failure(tidegate::OnFailure::Error).build().unwrap();
    let (tenants, users) = gates(&limiter);
    let error = limiter.check_all([tenants.ask("tenant:7"), users.ask("ann")]).await.unwrap_err();
    assert!(error.is_config(), "{error}");
    assert!(error.to_string().contains("the same key") && error.to_string().contains("beside"), "{error}");
    assert_eq!((error.gate(), error.key()), (Some("users"), Some(&b"ann"[..])));
    let same = limiter.check_all([tenants.ask("ann"), users.ask("ann")]).await.unwrap_err();
    assert!(same.is_unavailable(), "{same}");
}

#[tokio::test]
async fn beside_changes_nothing_without_a_cluster() {
    let server = harness::shared();
    for limiter in [crate::support::fixture::limiter(&server), Limiter::in_memory()] {
        let (_, users) = gates(&limiter);
        assert!(users.ask("ann").beside("tenant:7").check().await.unwrap().is_allowed());
        assert!(users.check("ann").await.unwrap().is_allowed());
        assert!(!users.ask("ann").beside("tenant:8").check().await.unwrap().is_allowed());
    }
}

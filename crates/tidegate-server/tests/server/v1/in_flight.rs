//! `/v1/acquire` and `/v1/release`.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Limiter, ManualClock, Quota, Switch};
use tidegate_server::Server;

use super::fixture::{RULES, Reply, by_rules, post};
use crate::server::fixture::{Running, in_memory, on};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{builder, namespace, soon};

pub fn exports(limit: u64, ttl_ms: u64) -> Value {
    let check = json!({ "gate": "exports", "key": "tenant:7", "quota": { "in_flight": limit } });
    json!({ "checks": [check], "ttl_ms": ttl_ms })
}

pub fn permit(reply: &Reply) -> Value {
    json!({ "permit": reply.body["permit"]["id"] })
}

#[tokio::test]
async fn permit_is_held_until_its_release() {
    let server = Running::start(in_memory(RULES)).await;
    for request in [exports(1, 60_000), by_rules("held", "ada")] {
        let acquired = post(&server, "acquire", &request).await;
        assert_eq!((acquired.status, &acquired.body["permit"]["units"]), (200, &json!(1)), "{acquired:?}");
        assert_eq!(acquired.body["permit"]["ttl_ms"], 60_000);
        let id = acquired.body["permit"]["id"].as_str().unwrap();
        assert!(id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");

        let denied = post(&server, "acquire", &request).await;
        assert_eq!((denied.status, &denied.body["permit"]), (429, &Value::Null));
        assert!(denied.headers.contains_key("retry-after"));

        let released = post(&server, "release", &permit(&acquired)).await;
        assert_eq!((released.status, &released.body), (200, &json!({ "confirmed": true })));
        let again = post(&server, "release", &permit(&acquired)).await;
        assert_eq!((again.status, again.problem()), (404, "unknown-permit"));
        assert_eq!(post(&server, "acquire", &request).await.status, 200);
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn permit_of_a_lost_client_ends_with_its_time() {
    let clock = ManualClock::new();
    let server = Running::start(on(RULES, &Limiter::in_memory_with(clock.clone()))).await;
    let lost = post(&server, "acquire", &exports(1, 30_000)).await;
    clock.advance(Duration::from_millis(29_999));
    assert_eq!(post(&server, "acquire", &exports(1, 1)).await.status, 429);
    clock.advance(Duration::from_millis(1));
    soon("released", async || post(&server, "acquire", &exports(1, 60_000)).await.status == 200).await;
    let late = post(&server, "release", &permit(&lost)).await;
    assert_eq!((late.status, late.problem()), (404, "unknown-permit"));
    assert_eq!(post(&server, "acquire", &exports(1, 1)).await.status, 429, "the late release ended no other");
    assert!(server.stop().await);
}

#[tokio::test]
async fn number_of_permits_is_bounded() {
    let server = Running::of(Server::new(in_memory(RULES)).max_permits(2).drain_notice(Duration::ZERO)).await;
    let request = exports(10, 60_000);
    let first = post(&server, "acquire", &request).await;
    assert_eq!(post(&server, "acquire", &request).await.status, 200);
    let full = post(&server, "acquire", &request).await;
    assert_eq!((full.status, full.problem()), (503, "too-many-permits"));
    assert_eq!(full.headers["retry-after"], "1");
    assert_eq!(post(&server, "release", &permit(&first)).await.status, 200);
    // Denied and mistaken requests leave their room.
    for _ in 0..5 {
        assert_eq!(post(&server, "acquire", &exports(1, 60_000)).await.status, 429);
        let mistaken = json!({ "checks": [{ "gate": "exports", "key": "x" }] });
        assert_eq!(post(&server, "acquire", &mistaken).await.status, 404);
    }
    assert_eq!(post(&server, "acquire", &request).await.status, 200);
    assert!(server.stop().await);
}

#[tokio::test]
async fn permits_of_a_server_are_counted_in_the_fleet_and_end_with_it() {
    let redis = tidegate_testkit::shared();
    let name = namespace();
    let limiter = || builder(redis.url()).namespace(&name).build().unwrap();
    let start = async || Running::start(on(RULES, &limiter())).await;
    let (one, two) = (start().await, start().await);
    let linked = limiter().gate("exports", Quota::in_flight(2));
    let first = post(&one, "acquire", &exports(2, 600_000)).await;
    let second = post(&two, "acquire", &exports(2, 600_000)).await;
    assert_eq!((first.status, second.status), (200, 200));
    assert!(linked.try_acquire("tenant:7").await.unwrap().permit().is_none());

    assert_eq!(post(&two, "release", &permit(&second)).await.body, json!({ "confirmed": true }));
    let held = linked.try_acquire("tenant:7").await.unwrap().permit().expect("the unit is free");
    assert_eq!(post(&two, "acquire", &exports(2, 600_000)).await.status, 429);
    // The end of the server releases what its clients hold.
    assert!(one.stop().await);
    assert_eq!(post(&two, "acquire", &exports(2, 600_000)).await.status, 200);
    drop(held);
    assert!(two.stop().await);
}

/// 10,000 such acquires would fill the table for the time that the client chooses.
#[tokio::test]
async fn acquire_that_holds_no_unit_keeps_no_room() {
    let rules = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: tried, shadow_mode: true, rate_limit: { in_flight: 1 } }
";
    let limiter = Limiter::in_memory();
    let server = Server::new(on(rules, &limiter)).max_permits(2).drain_notice(Duration::ZERO);
    let server = Running::of(server).await;
    limiter.control().switch("open", Switch::Open, None).await.unwrap();
    let open = json!({ "checks": [{ "gate": "open", "key": "x", "quota": { "in_flight": 1 } }] });
    // The rule in shadow mode holds its one unit.
    let tried = post(&server, "acquire", &by_rules("tried", "x")).await;
    assert_eq!(tried.body["permit"]["units"], 1, "{tried:?}");
    let unknown = json!({ "domain": "unknown", "descriptors": [{ "entries": [] }], "ttl_ms": 3_600_000 });
    for request in [unknown, by_rules("other", "x"), by_rules("user", "x"), by_rules("tried", "x"), open] {
        for _ in 0..5 {
            let reply = post(&server, "acquire", &request).await;
            assert_eq!((reply.status, &reply.body["allowed"]), (200, &json!(true)), "{request}: {reply:?}");
            assert_eq!(reply.body.get("permit"), Some(&Value::Null), "{request}: {reply:?}");
        }
    }
    assert_eq!(post(&server, "acquire", &exports(1, 60_000)).await.status, 200);
    assert_eq!(post(&server, "release", &permit(&tried)).await.status, 200);

    let null = post(&server, "release", &json!({ "permit": null })).await;
    assert_eq!((null.status, null.problem()), (400, "malformed-body"));
    assert!(null.detail().contains("`permit`: null is no permit"), "{null:?}");
    let missing = post(&server, "release", &json!({})).await;
    assert!(missing.detail().contains("missing field `permit`"), "{missing:?}");
    assert!(server.stop().await);
}

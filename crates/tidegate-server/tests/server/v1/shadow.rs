//! The service's shadow mode, which denies nothing.

use serde_json::{Value, json};

use super::fixture::{RULES, Reply, by_gate, by_rules, post, quota};
use crate::server::fixture::{Running, in_memory};

async fn server() -> Running {
    Running::start(in_memory(RULES).shadow(true)).await
}

/// Asserts that the request is admitted, and that its parts show the denial.
fn assert_shows_a_denial(reply: &Reply, what: &str) {
    assert_eq!(reply.status, 200, "{what}: {reply:?}");
    assert!(!reply.headers.contains_key("retry-after"), "{what}");
    assert_eq!((&reply.body["allowed"], &reply.body["retry_after_us"]), (&json!(true), &json!(0)), "{what}");
    assert_eq!(reply.body["decision"]["allowed"], false, "{what}: {reply:?}");
    assert!(reply.body["decision"]["retry_after_us"].as_u64().unwrap() > 0, "{what}");
    let outcomes = reply.body["outcomes"].as_array().unwrap();
    assert!(outcomes.iter().any(|outcome| outcome["decision"]["allowed"] == false), "{what}: {reply:?}");
}

#[tokio::test]
async fn every_endpoint_admits_and_shows_the_denials() {
    let server = server().await;
    let checks = |key: &str| json!({ "checks": [by_gate("d.user", key)] });
    let in_flight = json!({ "checks": [{ "gate": "exports", "key": "t", "quota": { "in_flight": 1 } }] });
    let mail = json!({ "gate": "mail", "key": "k", "cost": 2, "quota": quota(3) });
    for (endpoint, body, admitted) in [
        ("check", by_gate("d.user", "ada"), 2),
        ("check", by_rules("user", "bob"), 2),
        ("check", by_rules("none", "x"), 0),
        ("check", mail, 1),
        ("peek", by_gate("d.user", "ada"), 0),
        ("peek", by_rules("user", "ada"), 0),
        ("check_all", checks("cid"), 2),
        ("check_all", by_rules("user", "dan"), 2),
        ("reserve", checks("eve"), 2),
        ("reserve", by_rules("user", "fay"), 2),
        ("reserve", by_rules("none", "x"), 0),
        ("acquire", in_flight, 1),
        ("acquire", by_rules("held", "x"), 1),
    ] {
        for _ in 0..admitted {
            let reply = post(&server, endpoint, &body).await;
            assert_eq!((reply.status, &reply.body["decision"]["allowed"]), (200, &json!(true)), "{reply:?}");
        }
        for _ in 0..2 {
            let reply = post(&server, endpoint, &body).await;
            assert_shows_a_denial(&reply, &format!("{endpoint} {body}"));
            // Nothing is held, so there is nothing to settle and to release.
            let parts = reply.body.as_object().unwrap();
            let held = (parts.get("reservation"), parts.get("permit"));
            let null = Some(&Value::Null);
            let expected = (null.filter(|_| endpoint == "reserve"), null.filter(|_| endpoint == "acquire"));
            assert_eq!(held, expected, "{endpoint} {body}");
        }
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn mistakes_stay_mistakes() {
    let server = server().await;
    let mut costly = by_gate("d.user", "ada");
    costly["cost"] = 3.into();
    for (body, status, problem) in [
        (costly, 400, "cost-above-limit"),
        (by_gate("d.usr", "ada"), 404, "unknown-gate"),
        (by_rules("held", "x"), 400, "invalid-request"),
    ] {
        let reply = post(&server, "check", &body).await;
        assert_eq!((reply.status, reply.problem()), (status, problem), "{body}");
    }
    assert!(server.stop().await);
}

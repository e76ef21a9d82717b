//! `/v1/reserve`, `/v1/commit` and `/v1/cancel`.

use serde_json::{Value, json};
use tidegate::{Limiter, Switch, Token};
use tidegate_http::Headers;

use super::fixture::{RULES, by_gate, by_rules, post, quota};
use crate::server::fixture::{Running, in_memory, on};
use crate::support::fixture::{builder, namespace};

fn tokens(cost: u64) -> Value {
    json!({ "gate": "llm.tokens", "key": "tenant:7", "cost": cost, "quota": quota(1_000) })
}

async fn left(server: &Running) -> Value {
    post(server, "peek", &tokens(1)).await.body["decision"]["remaining"].clone()
}

#[tokio::test]
async fn commit_charges_the_actual_units_once() {
    let server = Running::start(in_memory(RULES)).await;
    let request = json!({ "checks": [by_gate("d.user", "ada"), tokens(800)], "ttl_ms": 60_000 });
    let reserved = post(&server, "reserve", &request).await;
    assert_eq!(reserved.status, 200, "{reserved:?}");
    let holds = json!([{ "gate": "d.user", "units": 1 }, { "gate": "llm.tokens", "units": 800 }]);
    assert_eq!(reserved.body["reservation"]["holds"], holds);
    let token = reserved.body["reservation"]["token"].clone();
    assert_eq!(left(&server).await, 200);

    let denied = post(&server, "reserve", &json!({ "checks": [tokens(300)] })).await;
    assert_eq!((denied.status, &denied.body["reservation"]), (429, &Value::Null));

    let wrong = post(&server, "commit", &json!({ "token": token, "actuals": [1] })).await;
    assert_eq!((wrong.status, wrong.problem()), (400, "invalid-request"));
    assert!(wrong.detail().contains("1 numbers for the 2 checks"), "{wrong:?}");

    let committed = post(&server, "commit", &json!({ "token": token, "actuals": [1, 740] })).await;
    assert_eq!((committed.status, &committed.body["settlements"]), (200, &json!(["settled", "settled"])));
    assert_eq!(left(&server).await, 260);
    let again = post(&server, "cancel", &json!({ "token": token })).await;
    assert_eq!((again.status, &again.body["settlements"]), (200, &json!(["nothing", "nothing"])));
    assert_eq!(left(&server).await, 260);
    assert!(server.stop().await);
}

#[tokio::test]
async fn rules_hold_what_they_charge() {
    let server = Running::start(in_memory(RULES)).await;
    let entry = |key: &str, value: &str| json!({ "entries": [{ "key": key, "value": value }] });
    let descriptors = [entry("other", "x"), entry("user", "ada"), entry("tried", "x")];
    let reserved = post(&server, "reserve", &json!({ "domain": "d", "descriptors": descriptors })).await;
    let holds = json!([{ "gate": "d.user", "units": 1 }, { "gate": "d.tried", "units": 1 }]);
    assert_eq!(reserved.body["reservation"]["holds"], holds, "{reserved:?}");
    assert_eq!(reserved.body["outcomes"][0]["outcome"], "no_rule");
    let cancelled = post(&server, "cancel", &json!({ "token": reserved.body["reservation"]["token"] })).await;
    assert_eq!(cancelled.body["settlements"], json!(["settled", "settled"]));
    let peeked = post(&server, "peek", &by_rules("user", "ada")).await;
    assert_eq!(peeked.body["decision"]["remaining"], 2);

    // What costs nothing is asked, and nothing of it is held.
    let of_hits = |hits: u64| {
        let user = json!({ "entries": [{ "key": "user", "value": "eve" }], "hits": hits });
        json!({ "domain": "d", "descriptors": [user, entry("tried", "y")] })
    };
    let admitted = post(&server, "reserve", &of_hits(0)).await;
    let holds = &admitted.body["reservation"]["holds"];
    assert_eq!((admitted.status, holds), (200, &json!([{ "gate": "d.tried", "units": 1 }])));
    assert_eq!(post(&server, "reserve", &of_hits(2)).await.status, 200);
    let denied = post(&server, "reserve", &of_hits(0)).await;
    assert_eq!((denied.status, &denied.body["reservation"]), (429, &Value::Null));

    for (value, status) in [("user", 200), ("none", 429)] {
        let value = if value == "user" { by_rules("user", "root") } else { by_rules("none", "x") };
        let reply = post(&server, "reserve", &value).await;
        assert_eq!((reply.status, &reply.body["reservation"]), (status, &Value::Null), "nothing is held");
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn repeated_reservation_is_charged_once_and_settled_by_another_service() {
    let redis = tidegate_testkit::shared();
    let name = namespace();
    let limiter = || builder(redis.url()).namespace(&name).build().unwrap();
    let linked = limiter();
    let (one, two) =
        (Running::start(on(RULES, &limiter())).await, Running::start(on(RULES, &limiter())).await);
    let request = json!({ "checks": [tokens(400)], "ttl_ms": 60_000, "at_end": "back", "id": "job 1" });
    let reserved = post(&one, "reserve", &request).await;
    let repeated = post(&two, "reserve", &request).await;
    let token = &reserved.body["reservation"]["token"];
    assert_eq!(token, &repeated.body["reservation"]["token"]);
    assert_eq!(left(&two).await, 600);
    let settled = post(&two, "commit", &json!({ "token": token, "actuals": [100] })).await;
    assert_eq!(settled.body["settlements"], json!(["settled"]));
    assert_eq!(left(&one).await, 900);

    // A service that links the library settles what the API reserved.
    let reserved = post(&one, "reserve", &json!({ "checks": [tokens(500)] })).await;
    let token: Token = reserved.body["reservation"]["token"].as_str().unwrap().parse().unwrap();
    linked.cancel(&token).await.unwrap();
    assert_eq!(left(&one).await, 900);
    assert!(one.stop().await && two.stop().await);
}

#[tokio::test]
async fn rules_in_quota_mode_are_refused_with_their_path() {
    let rules = "
domain: d
charge: each
descriptors:
  - { key: a, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: b, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: c, rate_limit: { unit: year, requests_per_unit: 9 } }
";
    let server = Running::start(in_memory(rules)).await;
    let of = |keys: &[&str]| {
        let entry = |key: &&str| json!({ "entries": [{ "key": key, "value": "x" }] });
        json!({ "domain": "d", "descriptors": keys.iter().map(entry).collect::<Vec<_>>() })
    };
    for _ in 0..2 {
        assert_eq!(post(&server, "check", &of(&["a", "b"])).await.status, 200);
    }
    for keys in [&["a", "b"][..], &["c", "b"], &["a"]] {
        let refused = post(&server, "reserve", &of(keys)).await;
        assert_eq!((refused.status, refused.problem()), (400, "invalid-request"), "{refused:?}");
        assert!(refused.detail().contains("`quota_mode`"), "{refused:?}");
    }
    let first = post(&server, "reserve", &of(&["c", "b"])).await;
    assert!(first.detail().contains("the rule `d.b` has"), "{first:?}");
    let reserved = post(&server, "reserve", &of(&["c"])).await;
    assert_eq!((reserved.status, &reserved.body["decision"]["remaining"]), (200, &json!(8)), "{reserved:?}");
    assert!(server.stop().await);
}

/// A gate that an operator closes denies the group, also if it is that of a candidate, whose rule admits.
#[tokio::test]
async fn denial_reports_the_gate_that_denies_the_group() {
    let rules = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 9, candidate: { requests_per_unit: 8 } }
";
    let limiter = Limiter::in_memory();
    let server = Running::start(on(rules, &limiter).headers(Headers::none().x_ratelimit(true))).await;
    assert_eq!(post(&server, "reserve", &by_rules("user", "ada")).await.status, 200);
    limiter.control().switch("d.user..candidate", Switch::Closed, None).await.unwrap();
    let denied = post(&server, "reserve", &by_rules("user", "ada")).await;
    assert_eq!((denied.status, &denied.body["allowed"]), (429, &json!(false)), "{denied:?}");
    let decision = &denied.body["decision"];
    assert_eq!((&decision["gate"], &decision["allowed"]), (&json!("d.user..candidate"), &json!(false)));
    let wait_us = denied.body["retry_after_us"].as_u64().unwrap();
    assert!(wait_us > 0 && decision["retry_after_us"] == wait_us, "{denied:?}");
    assert_eq!(denied.headers["retry-after"], wait_us.div_ceil(1_000_000).to_string());
    assert!(server.stop().await);
}

//! `/v1/reserve`, `/v1/commit` and `/v1/cancel`.

use serde_json::{Value, json};
use tidegate::Token;

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

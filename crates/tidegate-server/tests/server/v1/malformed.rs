//! Bodies that no client should send.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reqwest::Client;
use serde_json::json;
use tidegate_server::Server;
use tokio::runtime::Runtime;

use super::fixture::{RULES, by_gate, by_rules, post, quota};
use crate::server::fixture::{Running, in_memory};

const ENDPOINTS: [&str; 8] =
    ["check", "peek", "check_all", "reserve", "commit", "cancel", "acquire", "release"];

/// A valid body, of which some bytes are removed, replaced or repeated.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let mail = json!({ "gate": "mail", "key": "k", "cost": 2, "quota": quota(100) });
    let valid = [
        mail.to_string(),
        by_rules("user", "ada").to_string(),
        json!({ "checks": [mail], "ttl_ms": 1_000, "at_end": "back", "id": "x" }).to_string(),
        json!({ "token": "AAAA", "actuals": [1, 2] }).to_string(),
        json!({ "permit": "00".repeat(20) }).to_string(),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6);
    (prop::sample::select(valid.to_vec()), changes).prop_map(|(text, changes)| {
        let mut body = text.into_bytes();
        for (at, byte, kind) in changes {
            let at = at.index(body.len().max(1));
            match kind {
                0 if !body.is_empty() => drop(body.remove(at)),
                1 if !body.is_empty() => body[at] = byte,
                _ => body.insert(at.min(body.len()), byte),
            }
        }
        body
    })
}

/// JSON values that are valid as such, with the names of fields.
pub fn shuffled(fractions: impl Strategy<Value = f64> + 'static) -> impl Strategy<Value = Vec<u8>> {
    let names = [
        "domain",
        "descriptors",
        "gate",
        "key",
        "cost",
        "quota",
        "checks",
        "entries",
        "value",
        "hits",
        "tier",
        "ttl_ms",
        "at_end",
        "id",
        "token",
        "actuals",
        "permit",
        "unit",
        "requests_per_unit",
        "in_flight",
        "every",
    ];
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|value| json!(value)),
        any::<u64>().prop_map(|value| json!(value)),
        any::<i64>().prop_map(|value| json!(value)),
        fractions.prop_map(|value| json!(value)),
        ".{0,20}".prop_map(|value| json!(value)),
        prop::sample::select(vec![
            "d",
            "user",
            "d.user",
            "mail",
            "day",
            "month",
            "1h",
            "token_bucket",
            "keep"
        ])
        .prop_map(|value| json!(value)),
    ];
    let value = leaf.prop_recursive(4, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| json!(items)),
            prop::collection::btree_map(prop::sample::select(names.to_vec()), inner, 0..6)
                .prop_map(|fields| json!(fields)),
        ]
    });
    value.prop_map(|value| value.to_string().into_bytes())
}

#[test]
fn no_body_makes_the_server_fail() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Running::start(in_memory(RULES)));
    let client = Client::new();
    let bodies = prop_oneof![prop::collection::vec(any::<u8>(), 0..200), damaged(), shuffled(any::<f64>())];
    let cases = (prop::sample::select(ENDPOINTS.to_vec()), bodies);
    let mut runner = TestRunner::new(Config { cases: 600, failure_persistence: None, ..Config::default() });
    runner
        .run(&cases, |(endpoint, body)| {
            let request = client.post(server.url(&format!("/v1/{endpoint}")));
            let request = request.header("content-type", "application/json").body(body);
            let (status, text) = runtime.block_on(async {
                let response = request.send().await.unwrap();
                (response.status().as_u16(), response.text().await.unwrap())
            });
            prop_assert!(matches!(status, 200 | 400 | 404 | 429), "{status} {text}");
            let is_object =
                serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|body| body.is_object());
            prop_assert!(is_object, "{text}");
            Ok(())
        })
        .unwrap();
    runtime.block_on(async {
        assert_eq!(post(&server, "check", &by_gate("d.user", "zoe")).await.status, 200, "it still serves");
        assert!(server.stop().await);
    });
}

#[tokio::test]
async fn nested_and_long_bodies_are_mistakes() {
    let server = Running::of(Server::new(in_memory(RULES)).max_message_bytes(1 << 20)).await;
    let nested = |open: &str| open.repeat(100_000).into_bytes();
    let long_name = json!({ "x".repeat(500_000): 1 }).to_string().into_bytes();
    for body in
        [nested("["), nested("{\"quota\":"), nested("{\"domain\":"), long_name, b"{}{}".to_vec(), vec![]]
    {
        for endpoint in ENDPOINTS {
            let request = Client::new().post(server.url(&format!("/v1/{endpoint}")));
            let request = request.header("content-type", "application/json").body(body.clone());
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 400);
            assert!(response.text().await.unwrap().len() < 5_000, "the body is not quoted in full");
        }
    }
    assert!(server.stop().await);
}

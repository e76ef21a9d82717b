//! Mistakes in requests, and their problems.

use std::sync::Mutex;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tidegate_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fixture::{RULES, by_gate, by_rules, post, quota};
use crate::server::fixture::{Running, in_memory};

#[tokio::test]
async fn mistakes_are_problems_that_say_what_to_do() {
    let server = Running::start(in_memory(RULES)).await;
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let ada = || by_gate("d.user", "ada");
    let check = |body: Value| json!({ "checks": [body] });
    let many = |count: usize| json!({ "checks": vec![ada(); count] });
    let entries = json!([{ "key": "user", "value": "ada" }]);
    for (endpoint, body, status, problem, detail) in [
        ("check", json!({}), 400, "invalid-request", "send `domain` and `descriptors`, or `gate` and `key`"),
        ("check_all", json!({}), 400, "invalid-request", "or `checks`"),
        ("check", json!({ "domain": "d" }), 400, "invalid-request", "`domain` needs `descriptors`"),
        ("check", json!({ "domain": "", "descriptors": [] }), 400, "invalid-request", "`domain` is empty"),
        ("check", json!({ "descriptors": [] }), 400, "invalid-request", "need a `domain`"),
        ("check", json!({ "domain": "d", "descriptors": [] }), 400, "invalid-request", "send at least one"),
        ("check", json!({ "gate": "d.user" }), 400, "invalid-request", "`gate` needs a `key`"),
        ("check", json!({ "key": "ada" }), 400, "invalid-request", "`key` needs a `gate`"),
        ("check", with(ada(), "domain", "d".into()), 400, "invalid-request", "both forms"),
        ("check", with(by_rules("user", "x"), "cost", 1.into()), 400, "invalid-request", "belong to `gate`"),
        ("check_all", json!({ "checks": [] }), 400, "invalid-request", "`checks` is empty"),
        ("check_all", many(101), 400, "invalid-request", "at most 100"),
        ("check", by_gate("d.usr", "x"), 404, "unknown-gate", "did you mean `d.user`?"),
        ("check", by_gate("d / usr", "x"), 404, "unknown-gate", "did you mean `d / user`?"),
        ("check", by_gate("d / user=root", "x"), 400, "invalid-request", "has no quota"),
        ("check", by_gate("nothing.like.it", "x"), 404, "unknown-gate", "Send its `quota`"),
        ("check", by_gate("A B", "x"), 400, "invalid-request", "name"),
        ("check", by_gate("", "x"), 400, "invalid-request", "name"),
        ("check", by_gate(&"g".repeat(65), "x"), 400, "invalid-request", "name"),
        ("check", by_gate("d.user-root", "x"), 400, "invalid-request", "has no quota"),
        ("check", with(ada(), "quota", quota(9)), 400, "invalid-request", "remove `quota`"),
        ("check", with(ada(), "cost", 3.into()), 400, "cost-above-limit", "limit of 2"),
        ("check", with(by_gate("m", "k"), "quota", json!({})), 400, "invalid-request", "`quota` of gate `m`"),
        ("check", with(by_gate("m", "k"), "quota", quota(0)), 400, "invalid-request", "at least 1 unit"),
        (
            "check",
            with(by_gate("m", "k"), "quota", json!({ "requests_per_unit": 1, "unit": "minut" })),
            400,
            "invalid-request",
            "there is no unit `minut`: did you mean `minute`?",
        ),
        (
            "check",
            with(by_gate("m", "k"), "quota", "100/min".into()),
            400,
            "malformed-body",
            r#"write such as {"requests_per_unit": 100, "unit": "minute"}"#,
        ),
        (
            "check",
            json!({ "domain": "d", "descriptors": [{ "user": "bob" }] }),
            400,
            "malformed-body",
            r#"unknown field `user`, expected one of `entries`, `hits`, `tier` at line 1 column 23; write such as {"entries": [{"key": "user", "value": "bob"}]}"#,
        ),
        (
            "check",
            with(by_gate("m", "k"), "quota", json!({ "requests_per_unit": u64::MAX, "unit": "day" })),
            400,
            "invalid-request",
            "`quota` of gate `m`",
        ),
        ("check", with(ada(), "kye", "x".into()), 400, "malformed-body", "did you mean `key`?"),
        (
            "check",
            with(ada(), "cost", (-1).into()),
            400,
            "malformed-body",
            "expected a whole number of units from 0",
        ),
        (
            "check",
            with(ada(), "cost", 1.5.into()),
            400,
            "malformed-body",
            "`cost`: invalid type: number `1.5`",
        ),
        (
            "check",
            with(ada(), "max_delay_us", "1s".into()),
            400,
            "malformed-body",
            "whole number of microseconds",
        ),
        ("check", json!([]), 400, "malformed-body", "expected an object"),
        ("check", json!(null), 400, "malformed-body", "invalid type"),
        (
            "check",
            json!({ "domain": "d", "descriptors": [{ "entries": entries, "hit": 1 }] }),
            400,
            "malformed-body",
            "`descriptors[0].hit`",
        ),
        (
            "check",
            json!({ "domain": "d", "descriptors": [{ "entries": [{ "key": "user", "value": 7 }] }] }),
            400,
            "malformed-body",
            "`descriptors[0].entries[0].value`",
        ),
        ("check", by_rules("held", "x"), 400, "invalid-request", "limits requests in flight"),
        (
            "reserve",
            with(check(ada()), "ttl_ms", 999.into()),
            400,
            "invalid-request",
            "use 1000 (1 s) to 86400000 ms (24 h)",
        ),
        (
            "reserve",
            with(check(ada()), "at_end", "bak".into()),
            400,
            "malformed-body",
            "did you mean `back`?",
        ),
        ("reserve", check(by_gate("d.held", "x")), 400, "invalid-request", "to `/v1/acquire` instead"),
        ("check", by_gate("d.held", "x"), 400, "invalid-request", "to `/v1/acquire` instead"),
        ("commit", json!({ "token": "x", "actuals": [] }), 400, "invalid-request", "no reservation token"),
        ("cancel", json!({ "token": "" }), 400, "invalid-request", "pass the `token` of the reservation"),
        ("cancel", json!({}), 400, "malformed-body", "missing field `token`"),
        ("acquire", with(check(by_gate("d.held", "x")), "ttl_ms", 0.into()), 400, "invalid-request", "1 to"),
        (
            "acquire",
            with(check(by_gate("d.held", "x")), "ttl_ms", 3_600_001.into()),
            400,
            "invalid-request",
            "`ttl_ms` is 3600001",
        ),
        ("release", json!({ "permit": "x" }), 400, "invalid-request", "not an id"),
        ("nothing", json!({}), 404, "no-such-endpoint", "/v1/openapi.json"),
    ] {
        let reply = post(&server, endpoint, &body).await;
        assert_eq!((reply.status, reply.problem()), (status, problem), "{endpoint} {body}: {reply:?}");
        assert!(reply.detail().contains(detail), "{endpoint} {body}: {}", reply.detail());
    }
    // No mistake has charged the key.
    assert_eq!(post(&server, "peek", &ada()).await.body["decision"]["remaining"], 2);
    assert_eq!(post(&server, "check_all", &many(2)).await.status, 200);
    assert!(server.stop().await);
}

#[tokio::test]
async fn cost_above_the_limit_is_told_with_both_numbers_by_name() {
    let server = Running::start(in_memory(RULES)).await;
    let mut of_hits = by_rules("user", "ada");
    of_hits["descriptors"][0]["hits"] = 7.into();
    let mut of_cost = by_gate("d.user", "ada");
    of_cost["cost"] = 7.into();
    for (endpoint, body) in [
        ("check", of_cost.clone()),
        ("check", of_hits.clone()),
        ("check_all", json!({ "checks": [by_gate("d.user", "bob"), of_cost] })),
        ("reserve", of_hits),
    ] {
        let reply = post(&server, endpoint, &body).await;
        assert_eq!(
            (reply.status, reply.problem()),
            (400, "cost-above-limit"),
            "{endpoint} {body}: {reply:?}"
        );
        let numbers = ["gate", "cost", "limit"].map(|name| &reply.body[name]);
        assert_eq!(numbers, [&json!("d.user"), &json!(7), &json!(2)], "{endpoint} {body}");
    }
    assert!(post(&server, "check", &by_gate("d.usr", "ada")).await.body.get("cost").is_none());
    assert!(server.stop().await);
}

#[tokio::test]
async fn method_type_and_size_are_checked() {
    let server = Running::of(Server::new(in_memory(RULES)).max_message_bytes(200)).await;
    let url = server.url("/v1/check");
    let details = Mutex::new(Vec::new());
    let send = async |method: Method, content_type: Option<&str>, body: String| {
        let request = Client::new().request(method, &url).body(body);
        let request = match content_type {
            Some(content_type) => request.header("content-type", content_type),
            None => request,
        };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let body = response.text().await.unwrap();
        let problem: Value = serde_json::from_str(&body).unwrap();
        details.lock().unwrap().push(problem["detail"].to_string());
        (status, problem["type"].clone())
    };
    let valid = || by_gate("d.user", "ada").to_string();
    for content_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("")] {
        let (status, kind) = send(Method::POST, content_type, valid()).await;
        assert_eq!((status, kind), (415, json!("urn:tidegate:problem:unsupported-media-type")));
    }
    for content_type in ["application/json", "Application/JSON; charset=utf-8"] {
        assert_eq!(send(Method::POST, Some(content_type), valid()).await.0, 200);
    }
    let (status, kind) = send(Method::GET, Some("application/json"), valid()).await;
    assert_eq!((status, kind), (405, json!("urn:tidegate:problem:method-not-allowed")));
    assert_eq!(details.lock().unwrap().last().unwrap(), "\"use POST\"");
    let quoted = valid().replace('"', "'");
    assert_eq!(send(Method::POST, Some("application/json"), quoted).await.0, 400);
    assert!(details.lock().unwrap().last().unwrap().contains("; JSON needs double quotes"));
    let padded = |bytes: usize| {
        let body = by_gate("d.user", "").to_string();
        let padding = "k".repeat(bytes - body.len());
        by_gate("d.user", &padding).to_string()
    };
    assert_eq!(send(Method::POST, Some("application/json"), padded(200)).await.0, 200);
    let (status, kind) = send(Method::POST, Some("application/json"), padded(201)).await;
    assert_eq!((status, kind), (413, json!("urn:tidegate:problem:body-too-large")));
    assert!(server.stop().await);
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let server = Running::start(in_memory(RULES)).await;
    for (sent, expected) in [
        (
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
            "HTTP/1.1 408",
        ),
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n", ""),
        ("", ""),
        // After a response.
        ("GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1 200"),
    ] {
        let mut client = TcpStream::connect(server.http_addr).await.unwrap();
        client.write_all(sent.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), client.read_to_end(&mut reply)).await;
        read.expect("the server closes the connection").unwrap();
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with(expected), "{sent}: {reply}");
        assert_eq!(reply.is_empty(), expected.is_empty(), "{reply}");
    }
    assert!(server.stop().await);
}

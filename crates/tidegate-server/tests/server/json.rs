//! `/json`, `/livez` and `/readyz`.

use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tidegate::Limiter;
use tidegate_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fixture::{Running, in_memory, on};

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2, name: per_user }
  - key: user
    value: root
    rate_limit: { unlimited: true }
";

async fn post(server: &Running, body: impl Into<reqwest::Body>) -> (u16, String) {
    let response = Client::new().post(server.url("/json")).body(body).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

fn user(name: &str) -> Value {
    json!({ "domain": "d", "descriptors": [{ "entries": [{ "key": "user", "value": name }] }] })
}

#[tokio::test]
async fn json_is_that_of_protocol_buffers() {
    let server = Running::start(in_memory(RULES)).await;
    let (status, text) = post(&server, user("ada").to_string()).await;
    let mut decided: Value = serde_json::from_str(&text).unwrap();
    let reset = decided["statuses"][0]["durationUntilReset"].take();
    assert!(reset.as_str().unwrap().ends_with('s'), "{text}");
    let limit = json!({ "name": "per_user", "requestsPerUnit": 2, "unit": "YEAR" });
    let status_of_user =
        json!({ "code": "OK", "currentLimit": limit, "limitRemaining": 1, "durationUntilReset": null });
    assert_eq!((status, &decided), (200, &json!({ "overallCode": "OK", "statuses": [status_of_user] })));

    let unlimited =
        json!({ "overallCode": "OK", "statuses": [{ "code": "OK", "limitRemaining": u32::MAX }] });
    let (status, text) = post(&server, user("root").to_string()).await;
    assert_eq!((status, serde_json::from_str::<Value>(&text).unwrap()), (200, unlimited));
    assert!(server.stop().await);
}

#[tokio::test]
async fn status_follows_the_decision() {
    let server = Running::start(in_memory(RULES)).await;
    let entries = json!([{ "key": "user", "value": "bob" }]);
    for (body, expected) in [
        // Both spellings of a name, and numbers as text.
        (json!({ "domain": "d", "descriptors": [{ "entries": entries, "hitsAddend": "1" }] }), 200),
        (json!({ "domain": "d", "descriptors": [{ "entries": entries, "hits_addend": 1 }] }), 200),
        (json!({ "domain": "d", "descriptors": [{ "entries": entries }] }), 429),
        (json!({ "domain": "d", "hitsAddend": 3, "descriptors": [{ "entries": entries }] }), 429),
        (json!({ "domain": "", "descriptors": [{ "entries": entries }] }), 400),
        (json!({ "domain": "d" }), 400),
        (json!({ "domain": "d", "descriptor": [] }), 400),
        (json!({ "domain": 7 }), 400),
        (json!([]), 400),
    ] {
        let (status, text) = post(&server, body.to_string()).await;
        assert_eq!(status, expected, "{body}: {text}");
    }
    let get = Client::new().request(Method::GET, server.url("/json")).body(user("eve").to_string());
    assert_eq!(get.send().await.unwrap().status(), 200, "every method, as in Envoy's service");
    let response =
        Client::new().post(server.url("/json")).body(user("eve").to_string()).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
}

#[tokio::test]
async fn misspelled_field_gets_the_name_that_is_meant() {
    let server = Running::start(in_memory(RULES)).await;
    for (body, expected) in [
        (json!({ "domain": "d", "descriptor": [] }), Some("did you mean `descriptors`?")),
        (json!({ "domain": "d", "hits_adend": 1 }), Some("did you mean `hits_addend`?")),
        (json!({ "domain": "d", "descriptors": [{ "entrie": [] }] }), Some("did you mean `entries`?")),
        (json!({ "domain": "d", "descriptors": [{ "limit": { "unti": 1 } }] }), Some("did you mean `unit`?")),
        (json!({ "it's ' hits_adden": 1 }), None),
        (json!({ "something_else": 1 }), None),
    ] {
        let (status, text) = post(&server, body.to_string()).await;
        assert_eq!(status, 400, "{body}: {text}");
        match expected {
            Some(expected) => assert!(text.contains(expected), "{body}: {text}"),
            None => assert!(!text.contains("did you mean"), "{body}: {text}"),
        }
    }
}

#[tokio::test]
async fn number_of_hits_that_is_not_valid_gets_the_range() {
    let server = Running::start(in_memory(RULES)).await;
    for hits in ["-1", "1.5", "1e30", r#""18446744073709551616""#, r#""x""#] {
        let of_request = format!(r#"{{"domain":"d","hitsAddend":{hits}}}"#);
        let of_descriptor = format!(r#"{{"domain":"d","descriptors":[{{"hitsAddend":{hits}}}]}}"#);
        for body in [of_request, of_descriptor] {
            let (status, text) = post(&server, body.clone()).await;
            assert_eq!((status, text.contains("from 0 to 4294967295")), (400, true), "{body}: {text}");
        }
    }
}

#[tokio::test]
async fn field_that_occurs_twice_is_a_mistake() {
    let server = Running::start(in_memory(RULES)).await;
    let entry = r#""entries":[{"key":"user","value":"ada"}]"#;
    for (body, name) in [
        (format!(r#"{{"domain":"other","domain":"d","descriptors":[{{{entry}}}]}}"#), "domain"),
        (format!(r#"{{"domain":"d","descriptors":[],"descriptors":[{{{entry}}}]}}"#), "descriptors"),
        (
            format!(r#"{{"domain":"d","hitsAddend":9,"hits_addend":1,"descriptors":[{{{entry}}}]}}"#),
            "hits_addend",
        ),
        (format!(r#"{{"domain":"d","descriptors":[{{{entry},{entry}}}]}}"#), "entries"),
        (
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"ada","value":"bob"}]}]}"#
                .to_owned(),
            "value",
        ),
    ] {
        let (status, text) = post(&server, body.clone()).await;
        assert_eq!(
            (status, text.contains(&format!("duplicate field `{name}`"))),
            (400, true),
            "{body}: {text}"
        );
    }
    assert_eq!(post(&server, user("ada").to_string()).await.0, 200);
    assert_eq!(post(&server, user("ada").to_string()).await.0, 200, "no mistake was charged");
}

#[tokio::test]
async fn error_does_not_repeat_a_long_request() {
    let server = Running::of(Server::new(in_memory(RULES)).max_message_bytes(1 << 20)).await;
    for body in [json!({ "x".repeat(900_000): 1 }), json!({ "domain": ["x".repeat(900_000)] })] {
        let (status, text) = post(&server, body.to_string()).await;
        assert_eq!((status, text.len() < 5_000), (400, true), "{} bytes", text.len());
    }
}

#[tokio::test]
async fn unknown_path_gets_a_problem_that_names_the_routes() {
    let server = Running::start(in_memory(RULES)).await;
    for path in ["/", "/other", "/health"] {
        let response = reqwest::get(server.url(path)).await.unwrap();
        assert_eq!(response.status(), 404, "{path}");
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{path}");
        let problem: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert_eq!(problem["type"], "urn:tidegate:problem:no-such-endpoint", "{problem}");
        for route in ["/json", "/v1/openapi.json", "/livez", "/readyz", "/healthcheck", "admin port"] {
            assert!(problem["detail"].as_str().unwrap().contains(route), "{route}: {problem}");
        }
    }
    let response = Client::new().post(server.url("/livez")).send().await.unwrap();
    assert_eq!(response.status(), 405);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
}

#[tokio::test]
async fn healthcheck_replies_as_envoyproxy_ratelimit_does() {
    let server = Running::of(Server::new(in_memory(RULES)).drain_notice(Duration::from_secs(60))).await;
    let url = server.url("/healthcheck");
    let response = reqwest::get(&url).await.unwrap();
    assert_eq!((response.status().as_u16(), response.text().await.unwrap()), (200, "OK".to_owned()));
    let stopping = tokio::spawn(server.stop());
    crate::support::fixture::soon("unhealthy", async || reqwest::get(&url).await.unwrap().status() == 500)
        .await;
    stopping.abort();
}

#[tokio::test]
async fn malformed_json_is_a_bad_request() {
    let server = Running::of(Server::new(in_memory(RULES)).max_message_bytes(1_000)).await;
    let nested = "[".repeat(100_000);
    let long = user(&"x".repeat(1_000)).to_string();
    let mut bodies: Vec<Vec<u8>> = [
        "",
        "{",
        "null",
        "\u{0}",
        "{}{}",
        "{\"domain\": \"d\"} x",
        "{\"domain\": \"\\ud800\"}",
        "1e999",
        &long,
        &nested,
        r#"{"domain":"d","descriptors":[{"entries":[],"hitsAddend":-1}]}"#,
        r#"{"domain":"d","descriptors":[{"entries":[],"hitsAddend":1e30}]}"#,
        r#"{"domain":"d","descriptors":[{"limit":{"unit":"WEEK"}}]}"#,
        r#"{"domain":"d","descriptors":[null]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    bodies.push(b"{\"domain\": \"\xff\"}".to_vec());
    // Every prefix, and every byte replaced.
    let valid = user("ada").to_string().into_bytes();
    bodies.extend((0..valid.len()).map(|end| valid[..end].to_vec()));
    bodies.extend((0..valid.len()).map(|at| {
        let mut body = valid.clone();
        body[at] ^= 0x55;
        body
    }));
    for body in bodies {
        let (status, text) = post(&server, body.clone()).await;
        assert!(matches!(status, 200 | 400 | 429), "{status} {text} {body:?}");
    }
    assert_eq!(post(&server, user("zoe").to_string()).await.0, 200, "the server still serves");
}

#[tokio::test]
async fn stopping_server_is_live_and_not_ready() {
    let notice = Duration::from_secs(60);
    let server = Running::of(Server::new(in_memory(RULES)).drain_notice(notice)).await;
    let (livez, readyz) = (server.url("/livez"), server.url("/readyz"));
    assert_eq!(reqwest::get(&livez).await.unwrap().status(), 200);
    assert_eq!(reqwest::get(&readyz).await.unwrap().status(), 200);
    assert_eq!(reqwest::get(server.url("/other")).await.unwrap().status(), 404);
    let stopping = tokio::spawn(server.stop());
    crate::support::fixture::soon("not ready", async || reqwest::get(&readyz).await.unwrap().status() == 503)
        .await;
    assert_eq!(reqwest::get(&livez).await.unwrap().status(), 200);
    stopping.abort();
}

#[tokio::test]
async fn readiness_depends_on_redis_only_if_set() {
    let limiter = || Limiter::builder().url("redis://127.0.0.1:1").stderr_warnings(false).build().unwrap();
    for (needs_redis, expected) in [(false, 200), (true, 503)] {
        let server = Server::new(on(RULES, &limiter())).ready_needs_redis(needs_redis);
        let server = Running::of(server).await;
        assert_eq!(reqwest::get(server.url("/readyz")).await.unwrap().status(), expected);
    }
}

#[tokio::test]
async fn silent_client_does_not_hold_the_end_of_the_server() {
    let server = Running::start(in_memory(RULES)).await;
    let _idle = TcpStream::connect(server.http_addr).await.unwrap();
    let mut half = TcpStream::connect(server.http_addr).await.unwrap();
    half.write_all(b"POST /json HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    assert_eq!(reqwest::get(server.url("/livez")).await.unwrap().status(), 200);
    assert!(server.stop().await, "connections without a request are closed");
    let mut rest = Vec::new();
    let _ = half.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

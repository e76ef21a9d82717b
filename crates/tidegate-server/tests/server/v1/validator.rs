//! The OpenAPI document, as Python packages read it: `openapi-spec-validator`, and `jsonschema`, which it depends on.
//! `scripts/openapi` installs both.

use std::cell::RefCell;
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use reqwest::Client;
use serde_json::{Value, json};

use super::fixture::{by_gate, by_rules, post, quota};
use super::malformed::shuffled;
use super::openapi::{DEMO, document};
use crate::server::fixture::{Running, in_memory};

const PACKAGES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../openapi");
const VALIDATE_DOCUMENT: &str = "
import json, sys
import openapi_spec_validator
openapi_spec_validator.validate(json.load(sys.stdin))
";
/// Prints for each body whether it is valid by the schema of its endpoint's request.
const VALIDATE_BODIES: &str = "
import json, sys
from jsonschema import Draft202012Validator
document, cases = json.load(sys.stdin)
def schema(endpoint):
    body = document['paths']['/v1/' + endpoint]['post']['requestBody']['content']['application/json']['schema']
    return Draft202012Validator({**body, 'components': document['components']})
schemas = {endpoint: schema(endpoint) for endpoint, _ in cases}
print(json.dumps([schemas[endpoint].is_valid(body) for endpoint, body in cases]))
";

/// Returns the output of a program whose input is this value.
fn python(program: &str, input: &Value) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, input.to_string()).unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", program]).env("PYTHONPATH", PACKAGES).stdin(file.reopen().unwrap());
    let run = python.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

/// Returns for each body whether the document admits it.
fn are_valid(document: &Value, cases: &[(&str, Value)]) -> Vec<bool> {
    serde_json::from_str(&python(VALIDATE_BODIES, &json!([document, cases]))).unwrap()
}

#[tokio::test]
async fn document_is_valid() {
    let server = Running::start(in_memory(DEMO)).await;
    python(VALIDATE_DOCUMENT, &document(&server).await);
    assert!(server.stop().await);
}

#[tokio::test]
async fn document_refuses_forms_and_values_that_the_server_refuses() {
    let server = Running::start(in_memory(DEMO)).await;
    let gate = || by_gate("demo.user", "ada");
    let rules = || by_rules("user", "ada");
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let checks = |count: usize| json!({ "checks": vec![gate(); count] });
    let of_quota = |quota: Value| with(by_gate("mail", "k"), "quota", quota);
    let refused = [
        ("check", json!({})),
        ("check", json!({ "domain": "d" })),
        ("check", json!({ "domain": "d", "descriptors": null })),
        ("check", json!({ "descriptors": rules()["descriptors"] })),
        ("check", with(rules(), "domain", "".into())),
        ("check", with(rules(), "descriptors", json!([]))),
        ("check", with(rules(), "descriptors", json!(vec![rules()["descriptors"][0].clone(); 101]))),
        ("check", with(rules(), "cost", 1.into())),
        ("check", with(rules(), "gate", "mail".into())),
        ("check", json!({ "gate": "demo.user" })),
        ("check", json!({ "key": "ada" })),
        ("check", by_gate("A B", "x")),
        ("check", by_gate("", "x")),
        ("check", by_gate(&"g".repeat(65), "x")),
        ("check", of_quota(json!({}))),
        ("check", of_quota(json!({ "requests_per_unit": 1 }))),
        ("check", of_quota(json!({ "requests_per_unit": 0, "unit": "day" }))),
        ("check", of_quota(json!({ "requests_per_unit": 1, "unit": "minut" }))),
        ("check", of_quota(json!({ "requests_per_unit": 1, "unit": "day", "every": "1h" }))),
        ("check", of_quota(json!({ "requests_per_unit": 1, "unit": "day", "algorithm": "bucket" }))),
        ("check", of_quota(json!({ "in_flight": 1, "unit": "day" }))),
        ("check_all", json!({})),
        ("check_all", checks(0)),
        ("check_all", checks(101)),
        ("check_all", with(checks(1), "domain", "d".into())),
        ("reserve", with(checks(1), "ttl_ms", 999.into())),
        ("reserve", with(checks(1), "at_end", "bak".into())),
        ("acquire", with(checks(1), "ttl_ms", 3_600_001.into())),
        ("commit", json!({ "token": "", "actuals": [] })),
        ("cancel", json!({ "token": "no token" })),
    ];
    let accepted = [
        ("check", gate()),
        ("check", rules()),
        ("check", with(gate(), "domain", Value::Null)),
        ("check", with(with(gate(), "cost", 2.into()), "max_delay_us", 1.into())),
        ("check", of_quota(quota(9))),
        ("check", of_quota(json!({ "requests_per_unit": 1, "every": "month", "zone": "Europe/Berlin" }))),
        ("check_all", checks(2)),
        ("check_all", with(rules(), "checks", Value::Null)),
        ("reserve", with(rules(), "ttl_ms", 1_000.into())),
        ("acquire", with(json!({ "checks": [of_quota(json!({ "in_flight": 9 }))] }), "ttl_ms", 1.into())),
    ];
    for (endpoint, body) in &refused {
        let reply = post(&server, endpoint, body).await;
        assert_eq!(reply.status, 400, "{endpoint} {body}: {reply:?}");
    }
    for (endpoint, body) in &accepted {
        let reply = post(&server, endpoint, body).await;
        assert!(matches!(reply.status, 200 | 429), "{endpoint} {body}: {reply:?}");
    }
    let document = document(&server).await;
    for (expected, cases) in [(false, &refused[..]), (true, &accepted[..])] {
        for ((endpoint, body), is_valid) in cases.iter().zip(are_valid(&document, cases)) {
            assert_eq!(is_valid, expected, "{endpoint} {body}");
        }
    }
    assert!(server.stop().await);
}

#[test]
fn body_that_the_document_admits_is_not_malformed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Running::start(in_memory(DEMO)));
    let client = Client::new();
    let cases = RefCell::new(Vec::new());
    let bodies = (
        prop::sample::select(vec!["check", "check_all", "reserve", "commit", "acquire"]),
        shuffled(0.1..0.9),
    );
    let config = ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&bodies, |(endpoint, body)| {
            let request = client.post(server.url(&format!("/v1/{endpoint}"))).body(body.clone());
            let request = request.header("content-type", "application/json");
            let text = runtime.block_on(async { request.send().await.unwrap().text().await.unwrap() });
            let is_malformed = text.contains("urn:tidegate:problem:malformed-body");
            cases.borrow_mut().push((
                endpoint,
                serde_json::from_slice::<Value>(&body).unwrap(),
                is_malformed,
            ));
            Ok(())
        })
        .unwrap();
    let (document, cases) = (runtime.block_on(document(&server)), cases.into_inner());
    let bodies: Vec<_> = cases.iter().map(|(endpoint, body, _)| (*endpoint, body.clone())).collect();
    for ((endpoint, body, is_malformed), is_valid) in cases.iter().zip(are_valid(&document, &bodies)) {
        assert!(!(*is_malformed && is_valid), "{endpoint} {body}");
    }
    assert!(runtime.block_on(server.stop()));
}

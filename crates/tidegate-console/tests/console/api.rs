//! Changes over the admin port, and their audit log.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin::{AuditEntry, AuditRecord, Inspector};
use tidegate::{KeyMode, Limiter, OnFailure, Quota, Rate};
use tidegate_console::Console;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::{Admin, Server};
use tidegate_testkit::Server as Redis;

use super::access::GATE;
use crate::server::admin_fixture::{OPERATOR, RULES, client, tokens};
use crate::server::fixture::{ANY, Running, descriptor, in_memory, on, request};
use crate::support::acl;
use crate::support::fixture::namespace;

pub fn limiter(url: &str, namespace: &str) -> Limiter {
    let builder = Limiter::builder().url(url).namespace(namespace).on_failure(OnFailure::Error);
    builder.deadline(Duration::from_secs(10)).stderr_warnings(false).build().unwrap()
}

pub async fn on_redis(limiter: &Limiter) -> Running {
    let admin = Admin::new(ANY).tokens(tokens()).pages(Console::new());
    let server = Server::new(on(RULES, limiter)).admin(admin);
    Running::of(server.drain_notice(Duration::ZERO)).await
}

pub async fn change(server: &Running, verb: &str, body: Value) -> (u16, Value) {
    let request = client().post(server.admin_url(&format!("/api/{verb}"))).bearer_auth(OPERATOR);
    let response =
        request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

pub async fn changed(server: &Running, verb: &str, body: Value) -> Value {
    let (status, answer) = change(server, verb, body.clone()).await;
    assert_eq!(status, 200, "{verb} {body}: {answer}");
    assert_eq!(answer["audit_error"], Value::Null, "{answer}");
    answer
}

pub async fn audit(server: &Running) -> Vec<Value> {
    let request = client().get(server.admin_url("/api/audit")).bearer_auth(OPERATOR);
    let answer: Value = serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
    answer["entries"].as_array().unwrap().clone()
}

pub async fn decide(server: &Running, user: &str) -> Code {
    let mut client = server.client().await;
    let decided = client.should_rate_limit(request([descriptor(&[("user", user)])])).await;
    decided.unwrap().into_inner().overall_code()
}

/// Makes all changes, and checks their effect on decisions.
async fn make_all_changes(server: &Running, key: &str) {
    let change = |more: Value| {
        let mut body = json!({ "gate": GATE, "key": key, "reason": "test" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert_eq!(decide(server, key).await, Code::Ok);
    assert_eq!(changed(server, "block", change(json!({ "for": "1h" }))).await["result"], "blocked for 1h");
    assert_eq!(decide(server, key).await, Code::OverLimit);
    changed(server, "unblock", change(json!({}))).await;
    assert_eq!(decide(server, key).await, Code::Ok);
    assert_eq!(decide(server, key).await, Code::OverLimit, "the usage stayed");
    changed(server, "reset", change(json!({}))).await;
    assert_eq!(decide(server, key).await, Code::Ok);
    changed(server, "override", change(json!({ "limit": "5", "for": "10m" }))).await;
    for _ in 0..4 {
        assert_eq!(decide(server, key).await, Code::Ok);
    }
    assert_eq!(decide(server, key).await, Code::OverLimit);
    let ended = changed(server, "end_override", change(json!({}))).await;
    assert_eq!(ended["changed"], true);
    assert_eq!(changed(server, "end_override", change(json!({}))).await["changed"], false);
    let switch = json!({ "gate": GATE, "to": "open", "for": "1m", "reason": "test" });
    changed(server, "switch", switch).await;
    assert_eq!(decide(server, key).await, Code::Ok);
    changed(server, "end_switch", json!({ "gate": GATE, "reason": "test" })).await;
    assert_eq!(decide(server, key).await, Code::OverLimit);
}

const VERBS: [&str; 8] =
    ["end_switch", "switch", "end_override", "end_override", "override", "reset", "unblock", "block"];

#[tokio::test]
async fn changes_take_effect_and_are_recorded_in_redis() {
    let redis = tidegate_testkit::shared();
    let namespace = namespace();
    let server = on_redis(&limiter(redis.url(), &namespace)).await;
    make_all_changes(&server, "<b>eve</b> é").await;
    let entries = audit(&server).await;
    let verbs: Vec<&str> = entries.iter().map(|entry| entry["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, VERBS);
    let block = &entries[7];
    for (field, expected) in [
        ("operator", "ada"),
        ("role", "operator"),
        ("gate", GATE),
        ("key", "<b>eve</b>%20%c3%a9"),
        ("detail", "for 1h"),
        ("reason", "test"),
        ("result", "blocked for 1h"),
    ] {
        assert_eq!(block[field].as_str().unwrap().to_lowercase(), expected.to_lowercase(), "{field}");
    }
    assert!(block["unix_ms"].as_u64().unwrap() > 1_600_000_000_000);
    // Another instance sees the same log.
    let other = on_redis(&limiter(redis.url(), &namespace)).await;
    assert_eq!(audit(&other).await, entries);
}

#[tokio::test]
async fn changes_in_memory_take_effect_and_are_recorded_in_this_process() {
    let seen = Arc::<Mutex<Vec<AuditEntry>>>::default();
    let of_audit = seen.clone();
    let admin = Admin::new(ANY)
        .tokens(tokens())
        .pages(Console::new().on_audit(move |entry, _| of_audit.lock().unwrap().push(entry.clone())));
    let server = Server::new(in_memory(RULES)).admin(admin).drain_notice(Duration::ZERO);
    let server = Running::of(server).await;
    make_all_changes(&server, "eve").await;
    let entries = audit(&server).await;
    let verbs: Vec<&str> = entries.iter().map(|entry| entry["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, VERBS);
    let seen: Vec<String> =
        seen.lock().unwrap().iter().rev().map(|entry| entry.record.verb.clone()).collect();
    assert_eq!(seen, VERBS);
}

#[tokio::test]
async fn wrong_change_changes_nothing_and_says_why() {
    let redis = tidegate_testkit::shared();
    let server = on_redis(&limiter(redis.url(), &namespace())).await;
    for (verb, body, status, expected) in [
        ("block", json!({ "gate": GATE, "key": "eve", "for": "1h" }), 400, "`reason` is missing"),
        ("block", json!({ "gate": GATE, "key": "eve", "reason": "x" }), 400, "`for` is missing"),
        ("block", json!({ "gate": GATE, "for": "1h", "reason": "x" }), 400, "`key` is missing"),
        (
            "block",
            json!({ "gate": GATE, "key": "eve", "duration": "1h", "reason": "x" }),
            400,
            "unknown field",
        ),
        ("block", json!({ "gate": "a b", "key": "eve", "for": "1h", "reason": "x" }), 400, "gate"),
        ("block", json!({ "gate": "", "key": "eve", "for": "1h", "reason": "x" }), 400, "gate"),
        ("block", json!({ "gate": "d.usr", "key": "eve", "for": "1h", "reason": "x" }), 409, "unknown"),
        ("switch", json!({ "gate": "d.usr", "to": "open", "reason": "x" }), 409, "no gate `d.usr`"),
        (
            "switch",
            json!({ "gate": GATE, "to": "off", "reason": "x" }),
            400,
            "`to` is `off`: write open, closed or shadow",
        ),
        (
            "override",
            json!({ "gate": GATE, "key": "eve", "for": "1h", "reason": "x" }),
            400,
            "`limit` is missing",
        ),
        (
            "override",
            json!({ "gate": GATE, "key": "eve", "for": "1h", "limit": "5", "algorithm": "x", "reason": "x" }),
            400,
            "is not an algorithm: write one of",
        ),
    ] {
        let (found, problem) = change(&server, verb, body.clone()).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert_eq!(found, status, "{body}: {problem}");
        assert!(detail.contains(expected), "{body}: {detail}");
    }
    assert!(audit(&server).await.is_empty());
    let forced = json!({ "gate": "d.usr", "to": "open", "reason": "x", "force": "true" });
    changed(&server, "switch", forced).await;
    changed(&server, "end_switch", json!({ "gate": "d.usr", "reason": "x" })).await;
}

#[tokio::test]
async fn gate_of_a_linked_library_is_blocked_by_the_form_of_its_keys() {
    let redis = tidegate_testkit::shared();
    let namespace = namespace();
    let library = limiter(redis.url(), &namespace);
    let login = library.gate("login", Quota::token_bucket(5, Rate::per_minute(5)));
    assert!(login.check("bob").await.unwrap().is_allowed());
    let server = on_redis(&limiter(redis.url(), &namespace)).await;
    changed(&server, "block", json!({ "gate": "login", "key": "eve", "for": "1h", "reason": "x" })).await;
    assert!(!login.check("eve").await.unwrap().is_allowed());
    changed(&server, "unblock", json!({ "gate": "login", "key": "eve", "stored": "true", "reason": "x" }))
        .await;
    assert!(login.peek("eve").await.unwrap().is_allowed());
}

#[tokio::test]
async fn key_that_is_stored_as_an_hmac_stays_hidden_in_the_audit_log() {
    let redis = tidegate_testkit::shared();
    let namespace = namespace();
    let builder = Limiter::builder().url(redis.url()).namespace(&namespace).deadline(Duration::from_secs(10));
    let limiter = builder.key_mode(KeyMode::Hmac(vec![7; 32])).on_failure(OnFailure::Error).build().unwrap();
    let server = on_redis(&limiter).await;
    changed(&server, "block", json!({ "gate": GATE, "key": "quagga", "for": "1h", "reason": "x" })).await;
    let (_, failed) =
        change(&server, "block", json!({ "gate": GATE, "key": "quagga", "for": "9999y", "reason": "x" }))
            .await;
    let entries = audit(&server).await;
    assert!(entries[0]["key"].as_str().unwrap().starts_with("%hmac="), "{entries:?}");
    assert!(!format!("{entries:?}{failed}").contains("quagga"));
}

#[tokio::test]
async fn audit_log_in_redis_is_bounded_and_its_texts_are_cut() {
    let redis = tidegate_testkit::shared();
    let namespace = namespace();
    let inspector = Inspector::new(&limiter(redis.url(), &namespace)).unwrap();
    assert!(inspector.audit_log(5).await.unwrap().is_empty());
    let key = format!("{namespace}:1:audit");
    let fill = "for i = 1, 12000 do redis.call('XADD', KEYS[1], '*', 'verb', 'old', 'key', i) end";
    redis.cli(&["EVAL", fill, "1", &key]).unwrap();
    let record =
        AuditRecord { verb: "reset".to_owned(), reason: "é".repeat(2_000), ..AuditRecord::default() };
    inspector.record_audit(&record).await.unwrap();
    let length = redis.cli(&["XLEN", &key]).unwrap();
    let length: u64 = length.rsplit(' ').next().unwrap().trim().parse().unwrap();
    assert!((10_000..=10_200).contains(&length), "{length}");
    let newest = inspector.audit_log(2).await.unwrap();
    assert_eq!((newest.len(), &*newest[0].record.verb, newest[0].record.reason.len()), (2, "reset", 1_024));
    assert_eq!(newest[1].record.key, "12000");
    assert!(inspector.audit_log(0).await.unwrap().is_empty());

    redis.cli(&["SET", &key, "garbage"]).unwrap();
    assert!(inspector.audit_log(1).await.is_err());
    assert!(inspector.record_audit(&record).await.is_err());
}

#[tokio::test]
async fn change_without_an_audit_entry_in_redis_is_reported() {
    let redis = tidegate_testkit::shared();
    let namespace = namespace();
    let server = on_redis(&limiter(redis.url(), &namespace)).await;
    redis.cli(&["SET", &format!("{namespace}:1:audit"), "garbage"]).unwrap();
    let (status, answer) =
        change(&server, "switch", json!({ "gate": GATE, "to": "open", "reason": "x" })).await;
    assert_eq!((status, &answer["changed"]), (200, &json!(true)));
    assert!(
        answer["audit_error"].as_str().unwrap().contains("a type that tidegate does not write"),
        "{answer}"
    );
    assert_eq!(decide(&server, "eve").await, Code::Ok);
    let failed = client().get(server.admin_url("/api/audit")).bearer_auth(OPERATOR).send().await.unwrap();
    assert_eq!(failed.status(), 503);
}

#[tokio::test]
async fn change_while_redis_is_away_fails() {
    let mut redis = Redis::process(&[]).unwrap();
    let limiter = Limiter::builder().url(redis.url()).deadline(Duration::from_secs(1)).stderr_warnings(false);
    let server = on_redis(&limiter.build().unwrap()).await;
    redis.kill();
    for (verb, body) in [
        ("block", json!({ "gate": GATE, "key": "eve", "for": "1h", "reason": "x" })),
        ("switch", json!({ "gate": GATE, "to": "open", "reason": "x" })),
    ] {
        let (status, problem) = change(&server, verb, body).await;
        assert_eq!(status, 503, "{problem}");
    }
}

#[tokio::test]
async fn documented_rights_suffice_for_all_changes_and_a_missing_one_is_named() {
    let redis = Redis::process(&[]).unwrap();
    acl::create_user(&redis);
    redis.cli(&["ACL", "SETUSER", acl::USER, "+scan", "+xadd", "+xrevrange"]).unwrap();
    let builder = Limiter::builder().url(redis.url()).credentials(acl::USER, acl::PASSWORD);
    let builder = builder.deadline(Duration::from_secs(10)).on_failure(OnFailure::Error);
    let server = on_redis(&builder.stderr_warnings(false).build().unwrap()).await;
    make_all_changes(&server, "eve").await;
    assert_eq!(audit(&server).await.len(), VERBS.len());
    redis.cli(&["ACL", "SETUSER", acl::USER, "-xadd"]).unwrap();
    let switch = json!({ "gate": GATE, "to": "open", "reason": "x" });
    let (status, answer) = change(&server, "switch", switch).await;
    assert_eq!(status, 200);
    assert!(answer["audit_error"].as_str().unwrap().contains("+xadd"), "{answer}");
}

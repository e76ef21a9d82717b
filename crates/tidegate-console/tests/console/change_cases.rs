//! Changes over the admin port in special cases: the end of the server, a slow Redis, no search, overrides, and keys in
//! memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin::AuditEntry;
use tidegate::{Limiter, OnFailure};
use tidegate_console::Console;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::{Admin, Server};
use tidegate_testkit::{Fault, Proxy, Server as Redis};

use super::access::{GATE, start};
use super::api::{audit, change, changed, decide, limiter, on_redis};
use crate::server::admin_fixture::{OPERATOR, RULES, client, tokens};
use crate::server::fixture::{ANY, Running, on};
use crate::support::acl;
use crate::support::fixture::{namespace, soon};

#[tokio::test]
async fn end_of_the_server_waits_for_the_audit_entry_of_a_change_whose_client_has_left() {
    let redis = Redis::process(&[]).unwrap();
    let namespace = namespace();
    let seen = Arc::<Mutex<Vec<AuditEntry>>>::default();
    let of_audit = seen.clone();
    let admin = Admin::new(ANY)
        .tokens(tokens())
        .pages(Console::new().on_audit(move |entry, _| of_audit.lock().unwrap().push(entry.clone())));
    let service = on(RULES, &limiter(redis.url(), &namespace));
    let server = Server::new(service).admin(admin).drain_notice(Duration::ZERO).drain(Duration::ZERO);
    let server = Running::of(server).await;
    assert_eq!(decide(&server, "bob").await, Code::Ok, "the scripts are loaded");

    redis.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]).unwrap();
    let body = json!({ "gate": GATE, "key": "eve", "for": "1h", "reason": "x" }).to_string();
    let request = client().post(server.admin_url("/api/block")).bearer_auth(OPERATOR);
    let sent = tokio::spawn(request.header("content-type", "application/json").body(body).send());
    soon("the change waits", async || redis.cli(&["CLIENT", "LIST"]).unwrap().contains("flags=b")).await;
    sent.abort();
    let mut stopping = tokio::spawn(server.stop());
    let early = tokio::time::timeout(Duration::from_millis(500), &mut stopping).await;
    assert!(early.is_err(), "the server has ended before the change");
    assert!(seen.lock().unwrap().is_empty());
    redis.cli(&["CLIENT", "UNPAUSE"]).unwrap();
    assert!(!stopping.await.unwrap(), "the drain time has ended");
    let results: Vec<String> = seen.lock().unwrap().iter().map(|entry| entry.record.result.clone()).collect();
    assert!(results.len() == 1 && results[0].starts_with("blocked for 1h"), "{results:?}");
    let log = redis.cli(&["XRANGE", &format!("{namespace}:1:audit"), "-", "+"]).unwrap();
    assert!(log.contains("blocked for 1h"), "{log}");
}

#[tokio::test]
async fn search_of_a_change_ends_with_the_drain_time_and_its_audit_entry_is_written() {
    let redis = Redis::process(&[]).unwrap();
    redis.cli(&["EVAL", "for i = 1, 100000 do redis.call('SET', i, i) end", "0"]).unwrap();
    let (proxy, namespace) = (Proxy::start(redis.url()).unwrap(), namespace());
    let admin = Admin::new(ANY).tokens(tokens()).pages(Console::new());
    let server = Server::new(on(RULES, &limiter(&proxy.url(), &namespace))).admin(admin);
    let server = Running::of(server.drain_notice(Duration::ZERO).drain(Duration::from_millis(200))).await;
    proxy.set(Fault::Slow(Duration::from_millis(100)));
    let body = json!({ "gate": GATE, "key": "eve", "for": "1h", "reason": "x" }).to_string();
    let request = client().post(server.admin_url("/api/block")).bearer_auth(OPERATOR);
    let sent = tokio::spawn(request.header("content-type", "application/json").body(body).send());
    let keys = format!("{namespace}:2:*");
    soon("the key is blocked", async || redis.cli(&["KEYS", &keys]).unwrap().contains(":eve")).await;
    assert!(!server.stop().await, "the drain time has ended");
    sent.abort();
    let log = redis.cli(&["XRANGE", &format!("{namespace}:1:audit"), "-", "+"]).unwrap();
    let result = "blocked for 1h; other forms were not searched: the program was told to end";
    assert!(log.contains(result), "{log}");
}

#[tokio::test]
async fn key_of_a_rule_is_blocked_although_redis_is_too_slow_for_checks() {
    let redis = Redis::process(&[]).unwrap();
    let (proxy, namespace) = (Proxy::start(redis.url()).unwrap(), namespace());
    let builder = Limiter::builder().url(&proxy.url()).namespace(&namespace).stderr_warnings(false);
    let server = on_redis(&builder.build().unwrap()).await;
    let fast = on_redis(&limiter(redis.url(), &namespace)).await;
    proxy.set(Fault::Slow(Duration::from_millis(150)));
    let block = json!({ "gate": GATE, "key": "eve", "for": "1h", "reason": "x" });
    assert_eq!(changed(&server, "block", block).await["result"], "blocked for 1h");
    assert_eq!(decide(&fast, "eve").await, Code::OverLimit);
}

#[tokio::test]
async fn key_of_a_rule_is_blocked_and_unblocked_although_no_search_is_possible() {
    let redis = Redis::process(&[]).unwrap();
    acl::create_user(&redis);
    redis.cli(&["ACL", "SETUSER", acl::USER, "+xadd", "+xrevrange", "-scan"]).unwrap();
    let builder = Limiter::builder().url(redis.url()).credentials(acl::USER, acl::PASSWORD);
    let builder = builder.deadline(Duration::from_secs(10)).on_failure(OnFailure::Error);
    let server = on_redis(&builder.stderr_warnings(false).build().unwrap()).await;
    let key = json!({ "gate": GATE, "key": "eve", "reason": "x" });
    let block = json!({ "gate": GATE, "key": "eve", "for": "1h", "reason": "x" });
    let blocked = changed(&server, "block", block).await;
    let result = blocked["result"].as_str().unwrap();
    assert!(result.starts_with("blocked for 1h; other forms were not searched: "), "{result}");
    assert!(result.contains("+scan"), "{result}");
    assert_eq!(decide(&server, "eve").await, Code::OverLimit);
    assert_eq!(audit(&server).await[0]["result"], result);
    let unblocked = changed(&server, "unblock", key.clone()).await;
    let result = unblocked["result"].as_str().unwrap();
    assert!(result.starts_with("no longer blocked; other forms were not searched: "), "{result}");
    assert_eq!(decide(&server, "eve").await, Code::Ok);
    assert_eq!(changed(&server, "unblock", key).await["changed"], false);

    // Without a rule, only a search finds how the key is stored.
    let (status, _) =
        change(&server, "block", json!({ "gate": "login", "key": "eve", "for": "1h", "reason": "x" })).await;
    assert_eq!(status, 503);
    let entry = &audit(&server).await[0];
    assert!(entry["result"].as_str().unwrap().starts_with("failed: "), "{entry}");
}

#[tokio::test]
async fn state_of_an_override_is_blocked_and_unblocked_too() {
    let redis = tidegate_testkit::shared();
    let server = on_redis(&limiter(redis.url(), &namespace())).await;
    let with = |more: Value| {
        let mut body = json!({ "gate": GATE, "key": "eve", "reason": "x" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let quota = json!({ "algorithm": "token_bucket", "limit": 9, "rate": "9/h", "for": "1h", "force": true });
    changed(&server, "override", with(quota)).await;
    changed(&server, "block", with(json!({ "for": "1h" }))).await;
    assert_eq!(decide(&server, "eve").await, Code::OverLimit);
    let unblocked = changed(&server, "unblock", with(json!({}))).await;
    assert_eq!(unblocked["result"], "no longer blocked");
    assert_eq!(decide(&server, "eve").await, Code::Ok);
    changed(&server, "end_override", with(json!({}))).await;
    assert_eq!(decide(&server, "eve").await, Code::Ok, "the state of the rule is not blocked either");
}

#[tokio::test]
async fn stored_key_in_memory_is_the_key_that_it_encodes() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let (key, written) = ("<b> é%", "<b>%20%c3%a9%25");
    let of = |key: &str, more: Value| {
        let mut body = json!({ "gate": GATE, "key": key, "reason": "x" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let stored = json!({ "stored": "true" });
    changed(&server, "override", of(key, json!({ "limit": "1", "for": "1h" }))).await;
    let ended = changed(&server, "end_override", of(written, stored.clone())).await;
    assert_eq!(ended["changed"], true, "{ended}");
    changed(&server, "block", of(written, json!({ "stored": "true", "for": "1h" }))).await;
    assert_eq!(decide(&server, key).await, Code::OverLimit);
    changed(&server, "unblock", of(written, stored.clone())).await;
    assert_eq!(decide(&server, key).await, Code::Ok);
    for wrong in ["%", "a%2", "%zz", "%sha256=00"] {
        let (status, problem) = change(&server, "reset", of(wrong, stored.clone())).await;
        assert_eq!(status, 400, "{wrong}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("`key` is no stored form"), "{problem}");
    }
}

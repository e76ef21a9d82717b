//! `/v1/check`, `/v1/peek` and `/v1/check_all`: statuses, decisions and headers.

use serde_json::{Value, json};
use tidegate_http::{Draft, Headers};

use super::fixture::{RULES, by_gate, by_rules, post, quota};
use crate::server::fixture::{Running, in_memory};

#[tokio::test]
async fn decision_has_all_fields_and_the_same_shape_everywhere() {
    let server = Running::start(in_memory(RULES)).await;
    let decision = |remaining: u64, source: &str| {
        json!({
            "gate": "d.user", "allowed": true, "limit": 2, "remaining": remaining,
            "delay_us": 0, "source": source, "shadow": false,
        })
    };
    let checks = json!({ "checks": [by_gate("d.user", "eve")] });
    for (endpoint, body, remaining, rule) in [
        ("peek", by_gate("d.user", "ada"), 2, Value::Null),
        ("check", by_gate("d.user", "ada"), 1, Value::Null),
        ("check", by_rules("user", "bob"), 1, json!("d.user")),
        ("peek", by_rules("user", "bob"), 1, json!("d.user")),
        ("check_all", checks.clone(), 1, Value::Null),
        ("check_all", by_rules("user", "cid"), 1, json!("d.user")),
        ("reserve", checks, 0, Value::Null),
    ] {
        let mut reply = post(&server, endpoint, &body).await;
        assert_eq!((reply.status, reply.headers["cache-control"].to_str().unwrap()), (200, "no-store"));
        assert_eq!(reply.headers["content-type"], "application/json");
        let outcome = reply.body["outcomes"][0].take();
        assert_eq!((&outcome["outcome"], &outcome["rule"]), (&json!("decided"), &rule), "{endpoint}");
        assert_eq!(outcome["decision"], reply.body["decision"], "{endpoint}");
        assert_eq!((&reply.body["allowed"], &reply.body["retry_after_us"]), (&json!(true), &json!(0)));
        assert_eq!(reply.body["delay_us"], 0);
        let mut decided = reply.body["decision"].take();
        let fields = decided.as_object_mut().unwrap();
        assert!(fields.remove("server_now_us").unwrap().is_u64());
        let retry_us = fields.remove("retry_after_us").unwrap().as_u64().unwrap();
        assert_eq!(retry_us > 0, remaining == 0, "{endpoint}");
        let reset_us = fields.remove("reset_after_us").unwrap().as_u64().unwrap();
        assert_eq!(reset_us > 0, remaining < 2, "{endpoint}");
        assert_eq!(decided, decision(remaining, "memory"), "{endpoint}");
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn gate_can_be_named_by_the_readable_name_of_its_rule() {
    let rules = format!(
        "{RULES}  - key: a
    descriptors: [{{ key: b, rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}]
  - key: a / b
    rate_limit: {{ unit: hour, requests_per_unit: 1 }}
"
    );
    let server = Running::start(in_memory(&rules)).await;
    for (endpoint, name, remaining) in
        [("check", "d / user", 1), ("check", "d.user", 0), ("peek", "d / user", 0), ("peek", "d / plan", 1)]
    {
        let reply = post(&server, endpoint, &by_gate(name, "ada")).await;
        assert_eq!((reply.status, &reply.body["decision"]["remaining"]), (200, &json!(remaining)), "{name}");
    }
    let checks = json!({ "checks": [by_gate("d / user", "eve"), by_gate("d / plan", "eve")] });
    assert_eq!(post(&server, "check_all", &checks).await.body["outcomes"][1]["decision"]["gate"], "d.plan");
    let shared = post(&server, "check", &by_gate("d / a / b", "ada")).await;
    assert_eq!((shared.status, shared.problem()), (404, "unknown-gate"));
    let detail = shared.detail();
    assert!(
        detail.starts_with("2 rules have the readable name `d / a / b`: send one of their gates, `"),
        "{detail}"
    );
    let gates: Vec<&str> = detail.split('`').skip(3).step_by(2).collect();
    assert_eq!(gates.len(), 2, "{detail}");
    for gate in gates {
        assert_eq!(post(&server, "check", &by_gate(gate, "ada")).await.status, 200, "{gate}");
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn request_that_no_rule_limits_says_why() {
    let server = Running::start(in_memory(RULES)).await;
    let root = || json!({ "key": "user", "value": "root" });
    let usr = || json!({ "key": "usr", "value": "ada" });
    let of = |domain: &str, entries: &[Value]| {
        let descriptors: Vec<Value> = entries.iter().map(|entry| json!({ "entries": [entry] })).collect();
        json!({ "domain": domain, "descriptors": descriptors })
    };
    let key = "no match for the key `usr`; available: `held`, `none`, `plan`, `tried`, `user`; did you mean `user`?";
    let domain = "no file has the domain `elsewhere`; available: `d`";
    for (body, expected) in [
        (of("elsewhere", &[root(), usr()]), [("no_domain", Some(domain)), ("no_domain", None)]),
        (of("d", &[usr(), usr()]), [("no_rule", Some(key)), ("no_rule", Some(key))]),
        (of("d", &[root(), usr()]), [("unlimited", None), ("no_rule", Some(key))]),
    ] {
        for endpoint in ["check", "peek", "check_all", "reserve", "acquire"] {
            let reply = post(&server, endpoint, &body).await;
            assert_eq!((reply.status, &reply.body["allowed"]), (200, &json!(true)), "{endpoint}: {reply:?}");
            let outcomes = reply.body["outcomes"].as_array().unwrap().iter();
            let found: Vec<_> = outcomes
                .map(|outcome| (outcome["outcome"].as_str().unwrap(), outcome["hint"].as_str()))
                .collect();
            assert_eq!(found, expected, "{endpoint} {body}");
        }
    }
    let many = of("d", &vec![usr(); 100]);
    let reply = post(&server, "check", &many).await;
    let hints = reply.body["outcomes"].as_array().unwrap().iter().filter(|it| it.get("hint").is_some());
    assert_eq!(hints.count(), 8, "the first ones suffice");
    let long = of("d", &[json!({ "key": "k".repeat(50_000), "value": "" })]);
    let hint = &post(&server, "check", &long).await.body["outcomes"][0]["hint"];
    assert!(hint.as_str().unwrap().len() < 2_000);
    assert!(server.stop().await);
}

#[tokio::test]
async fn status_follows_the_decision() {
    let server = Running::start(in_memory(RULES)).await;
    let mut with_cost = by_gate("d.user", "cost");
    with_cost["cost"] = 2.into();
    let mut with_tier = by_rules("plan", "ada");
    with_tier["descriptors"][0]["tier"] = "pro".into();
    let mut free = by_rules("user", "free");
    free["descriptors"][0]["hits"] = 0.into();
    let mail = json!({ "gate": "mail", "key": "k", "cost": 3, "quota": quota(3) });
    for (endpoint, body, expected) in [
        ("check", by_gate("d.user", "ada"), 200),
        ("check", by_rules("user", "ada"), 200),
        ("check", by_gate("d.user", "ada"), 429),
        ("check", by_rules("user", "ada"), 429),
        ("check_all", by_rules("user", "ada"), 429),
        ("peek", by_gate("d.user", "ada"), 200),
        ("peek", by_rules("user", "ada"), 200),
        ("check", with_cost.clone(), 200),
        ("check", with_cost, 429),
        ("check", free.clone(), 200),
        ("check", free, 200),
        ("check", by_rules("user", "root"), 200),
        ("check", by_rules("other", "x"), 200),
        ("check", by_rules("none", "x"), 429),
        ("peek", by_rules("none", "x"), 200),
        ("peek", by_rules("held", "x"), 200),
        ("check", by_rules("plan", "ada"), 200),
        ("check", by_rules("plan", "ada"), 429),
        ("check", with_tier, 200),
        ("check", by_rules("tried", "x"), 200),
        ("check", by_rules("tried", "x"), 200),
        ("check", mail.clone(), 200),
        ("check", mail, 429),
        ("check", by_gate("d.user", ""), 200),
        ("check", by_gate("d.user", "<script>alert(1)</script>\u{0}\u{1f600}"), 200),
        ("check", by_gate("d.user", &"k".repeat(60_000)), 200),
    ] {
        let reply = post(&server, endpoint, &body).await;
        assert_eq!(reply.status, expected, "{endpoint} {body}: {reply:?}");
        assert_eq!(reply.headers.contains_key("retry-after"), expected == 429, "{endpoint} {body}");
        // A peek has status 200 in any case.
        assert_eq!(reply.status, if reply.body["allowed"] == true || endpoint == "peek" { 200 } else { 429 });
        assert_eq!(reply.body["retry_after_us"].as_u64().unwrap() > 0, reply.body["allowed"] == false);
    }
    let peeked = post(&server, "peek", &by_gate("d.user", "ada")).await;
    assert_eq!((peeked.status, &peeked.body["allowed"]), (200, &json!(false)));
    assert!(server.stop().await);
}

#[tokio::test]
async fn outcomes_state_how_each_descriptor_was_decided() {
    let server = Running::start(in_memory(RULES)).await;
    let entry = |key: &str, value: &str| json!({ "entries": [{ "key": key, "value": value }] });
    let descriptors = [entry("user", "ada"), entry("user", "root"), entry("other", "x"), entry("tried", "x")];
    let request = json!({ "domain": "d", "descriptors": descriptors });
    let reply = post(&server, "check_all", &request).await;
    let outcomes: Vec<_> = reply.body["outcomes"].as_array().unwrap().iter().collect();
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome["outcome"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["decided", "unlimited", "no_rule", "decided"]);
    let paths: Vec<_> = outcomes.iter().map(|outcome| outcome["rule"].as_str()).collect();
    assert_eq!(paths, [Some("d.user"), Some("d.user_root"), None, Some("d.tried")]);
    assert_eq!(reply.body["decision"]["gate"], "d.user");
    let again = post(&server, "check_all", &request).await;
    assert_eq!(again.body["outcomes"][3]["decision"]["shadow"], true, "{again:?}");
    // Nothing limits it.
    let free = post(&server, "check", &by_rules("user", "root")).await;
    assert_eq!(free.body["decision"], Value::Null);
    assert!(server.stop().await);
}

#[tokio::test]
async fn check_all_charges_all_or_nothing() {
    let server = Running::start(in_memory(RULES)).await;
    let mail = |cost: u64| json!({ "gate": "mail", "key": "ada", "cost": cost, "quota": quota(10) });
    let both = |cost: u64| json!({ "checks": [mail(cost), by_gate("d.user", "ada")] });
    assert_eq!(post(&server, "check_all", &both(8)).await.status, 200);
    let denied = post(&server, "check_all", &both(3)).await;
    assert_eq!((denied.status, &denied.body["decision"]["gate"]), (429, &json!("mail")));
    assert_eq!(denied.body["outcomes"][1]["decision"]["allowed"], true, "its own gate admits it");
    let left = post(&server, "peek", &by_gate("d.user", "ada")).await;
    assert_eq!(left.body["decision"]["remaining"], 1, "the denial charged nothing");
    assert!(server.stop().await);
}

#[tokio::test]
async fn responses_have_the_headers_of_the_service() {
    let all = Headers::new().draft(Some(Draft::Eleven)).x_ratelimit(true);
    let server = Running::start(in_memory(RULES).headers(all)).await;
    for (body, name) in [(by_gate("d.user", "ada"), "d.user"), (by_rules("user", "bob"), "2/365d")] {
        let reply = post(&server, "check", &body).await;
        assert_eq!(reply.headers["x-ratelimit-limit"], "2");
        assert_eq!(reply.headers["x-ratelimit-remaining"], "1");
        let policy = reply.headers["ratelimit-policy"].to_str().unwrap();
        assert!(policy.starts_with(&format!("\"{name}\";q=2;w=")), "{policy}");
        assert!(!reply.headers.contains_key("retry-after"));
        post(&server, "check", &body).await;
        let denied = post(&server, "check", &body).await;
        assert_eq!(denied.headers["retry-after"], denied.headers["x-ratelimit-reset"]);
        let us = denied.body["retry_after_us"].as_u64().unwrap();
        assert_eq!(denied.headers["retry-after"].to_str().unwrap(), us.div_ceil(1_000_000).to_string());
    }
    let mut pro = by_rules("plan", "cid");
    pro["descriptors"][0]["tier"] = "pro".into();
    assert_eq!(post(&server, "check", &pro).await.headers["x-ratelimit-limit"], "5", "the quota of the tier");
    let all = json!({ "checks": [by_gate("d.user", "eve"), by_gate("d.plan", "eve")] });
    assert_eq!(
        post(&server, "check_all", &all).await.headers["x-ratelimit-limit"],
        "1",
        "the one that binds"
    );
    assert!(server.stop().await);
}

#[tokio::test]
async fn delay_of_a_leaky_bucket_is_shown_and_can_be_bounded() {
    let server = Running::start(in_memory(RULES)).await;
    let quota = json!({ "algorithm": "leaky_bucket", "requests_per_unit": 1, "unit": "minute", "burst": 5 });
    let body = json!({ "gate": "out", "key": "k", "quota": quota });
    assert_eq!(post(&server, "check", &body).await.body["delay_us"], 0);
    let delayed = post(&server, "check", &body).await;
    assert!(delayed.body["delay_us"].as_u64().unwrap() > 50_000_000, "{delayed:?}");
    let mut bounded = body;
    bounded["max_delay_us"] = 1_000.into();
    assert_eq!(post(&server, "check", &bounded).await.status, 429);
    assert!(server.stop().await);
}

#[tokio::test]
async fn rule_for_used_units_charges_more_than_its_limit() {
    let rules = "{ domain: d, descriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 20 }, \
                 charge_used: true }] }";
    let server = Running::start(in_memory(rules)).await;
    let (mut gate, mut rule) = (by_gate("d.user", "ada"), by_rules("user", "bob"));
    gate["cost"] = 21.into();
    rule["descriptors"][0]["hits"] = 21.into();
    let all = json!({ "checks": [{ "gate": "d.user", "key": "eve", "cost": 21 }] });
    for (endpoint, body, key) in [("check", gate, "ada"), ("check", rule, "bob"), ("check_all", all, "eve")] {
        assert_eq!(post(&server, endpoint, &body).await.status, 429, "{key}");
        let peeked = post(&server, "peek", &by_gate("d.user", key)).await;
        assert_eq!(peeked.body["decision"]["remaining"], 0, "{key}");
    }
}

//! In-flight limits from rules files.

use std::time::Duration;

use http::StatusCode;
use tidegate::Gate;
use tidegate_http::{Headers, RateLimitLayer};
use tidegate_rules::{Descriptor, RulesLimiter};

use super::fixture::{Open, memory, stores};
use crate::http::fixture::{Tested, request};
use crate::http::rules::{self, rules};
use crate::support::fixture::soon;

const RULES: &str = "
descriptors:
  - { key: api_key, rate_limit: { name: uploads, in_flight: 2, cost: 1 } }
  - { key: user, rate_limit: { name: daily, unit: day, requests_per_unit: 100 } }
";

/// The same limits, checked independently of each other; one more in shadow mode.
const EACH: &str = "
charge: each
descriptors:
  - { key: api_key, rate_limit: { name: uploads, in_flight: 2 } }
  - { key: user, rate_limit: { name: daily, unit: day, requests_per_unit: 1 } }
";

const TWO_SLOTS_EACH: &str = "
descriptors:
  - { key: api_key, rate_limit: { name: uploads, in_flight: 5, cost: 2 } }
";

/// A limit, and another one in shadow mode.
const LIMIT_AND_SHADOW: &str = "
descriptors:
  - { key: api_key, rate_limit: { name: uploads, in_flight: 1 } }
  - { key: user, shadow_mode: true, rate_limit: { name: new, in_flight: 5 } }
";

const NONE: &str = "
descriptors:
  - { key: api_key, rate_limit: { name: uploads, in_flight: 0 } }
";

const SHADOW: &str = "
descriptors:
  - { key: api_key, shadow_mode: true, rate_limit: { name: uploads, in_flight: 1 } }
";

fn layer(limits: &RulesLimiter) -> RateLimitLayer {
    RateLimitLayer::with_rules(limits.clone(), "api").unwrap()
}

/// Returns the gate of a descriptor's rule, and its key for `value`.
async fn used(limits: &RulesLimiter, descriptor: &'static str, value: &'static str) -> u64 {
    let plan = limits.plan("api", &[Descriptor::from([(descriptor, value)])]);
    let planned = plan.checks().iter().chain(plan.shadow_checks()).next().unwrap();
    let gate: &Gate = planned.gate();
    let decision = gate.peek(planned.key()).await.unwrap();
    decision.limit() - decision.remaining()
}

async fn becomes(limits: &RulesLimiter, slots: u64) {
    soon(&format!("{slots} slots are held"), async || used(limits, "api_key", "a").await == slots).await;
}

#[tokio::test]
async fn rule_in_flight_holds_a_slot_until_the_body_has_ended() {
    let (_server, stores) = stores();
    for limiter in stores {
        let limits = rules(RULES).bind(&limiter);
        // The layer's cost counts units of rates.
        let layer = layer(&limits).cost(|_| 4);
        let both = || rules::request(&[("x-api-key", "a"), ("x-user", "u")]);
        let first = Open::begin_with(layer.clone(), both(), StatusCode::OK, None).await;
        let policy = r#""uploads";q=2;qu="concurrent-requests", "daily";q=100;w=86400"#;
        assert_eq!(first.response.headers()["ratelimit-policy"], policy);
        let second = Open::begin_with(layer.clone(), both(), StatusCode::OK, None).await;
        assert_eq!((used(&limits, "api_key", "a").await, used(&limits, "user", "u").await), (2, 8));
        let denied = Tested::new(layer.clone()).send(both()).await;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(denied.body.contains("\"uploads\\\" of 2 concurrent requests"), "{}", denied.body);
        assert_eq!(used(&limits, "user", "u").await, 8, "the denied request is charged nothing");
        second.end().await;
        becomes(&limits, 1).await;
        assert_eq!(Tested::new(layer).send(request("a")).await.status, StatusCode::OK);
        drop(first);
        becomes(&limits, 0).await;
    }
}

#[tokio::test]
async fn request_that_another_limit_denies_holds_no_slot_under_charge_each() {
    let (_server, stores) = stores();
    for limiter in stores {
        let limits = rules(EACH).bind(&limiter);
        let both = || rules::request(&[("x-api-key", "a"), ("x-user", "u")]);
        let open = Open::begin_with(layer(&limits), both(), StatusCode::OK, None).await;
        assert_eq!(used(&limits, "api_key", "a").await, 1);
        let denied = Tested::new(layer(&limits)).send(both()).await;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS, "by the rate");
        becomes(&limits, 1).await;
        drop(open);
        becomes(&limits, 0).await;
    }
}

#[tokio::test]
async fn rule_in_shadow_mode_counts_and_denies_nothing() {
    let (_server, stores) = stores();
    for limiter in stores {
        let limits = rules(SHADOW).bind(&limiter);
        let layer = layer(&limits).headers(Headers::new().shadow(true));
        let first = Open::begin(layer.clone()).await;
        assert_eq!(first.response.headers()["x-ratelimit-shadow"], r#""uploads";r=0"#);
        assert_eq!(used(&limits, "api_key", "a").await, 1);
        let second = Open::begin(layer).await;
        assert_eq!(second.response.headers()["x-ratelimit-shadow"], r#""uploads";r=0;denied"#);
        drop((first, second));
        becomes(&limits, 0).await;
    }
}

#[tokio::test]
async fn cost_of_the_layer_does_not_change_the_slots() {
    let (_server, stores) = stores();
    for limiter in stores {
        let limits = rules(RULES).bind(&limiter);
        let layer = layer(&limits).cost(|_| 0);
        let both = || rules::request(&[("x-api-key", "a"), ("x-user", "u")]);
        let first = Open::begin_with(layer.clone(), both(), StatusCode::OK, None).await;
        let second = Open::begin_with(layer.clone(), both(), StatusCode::OK, None).await;
        assert_eq!((used(&limits, "api_key", "a").await, used(&limits, "user", "u").await), (2, 0));
        assert_eq!(Tested::new(layer).send(both()).await.status, StatusCode::TOO_MANY_REQUESTS);
        drop((first, second));
        becomes(&limits, 0).await;
    }
}

#[tokio::test]
async fn largest_cost_of_the_layer_does_not_change_the_slots() {
    let limits = rules(TWO_SLOTS_EACH).bind(&memory());
    let open = Open::begin(layer(&limits).cost(|_| u64::MAX)).await;
    assert_eq!(used(&limits, "api_key", "a").await, 2);
    drop(open);
    becomes(&limits, 0).await;
}

#[tokio::test]
async fn waiting_request_holds_no_slot_of_a_rule_in_shadow_mode() {
    let limits = rules(LIMIT_AND_SHADOW).bind(&memory());
    let layer = layer(&limits).wait(Duration::from_secs(60), 10);
    let both = || rules::request(&[("x-api-key", "a"), ("x-user", "u")]);
    let open = Open::begin_with(layer.clone(), both(), StatusCode::OK, None).await;
    let tested = Tested::new(layer);
    let waiting = tested.begin(both()).await;
    assert!(!waiting.is_finished());
    assert_eq!(used(&limits, "user", "u").await, 1, "only that of the request in flight");
    drop(open);
    soon("the request enters", async || waiting.is_finished()).await;
    assert_eq!(waiting.await.unwrap().status, StatusCode::OK);
    becomes(&limits, 0).await;
    soon("no slot is held", async || used(&limits, "user", "u").await == 0).await;
}

#[tokio::test]
async fn limit_of_no_requests_is_reported_without_a_window() {
    let limits = rules(NONE).bind(&memory());
    let denied = Tested::new(layer(&limits)).get("a").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""uploads";q=0;qu="concurrent-requests""#));
    assert_eq!(denied.header("ratelimit"), Some(r#""uploads";r=0"#));
    assert_eq!(denied.header("x-ratelimit-limit"), None);
    assert!(denied.body.contains("of 0 concurrent requests is reached"), "{}", denied.body);
}

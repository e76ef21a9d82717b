//! Gates that an operator has switched closed or in shadow mode, as clients observe them.

use std::collections::BTreeSet;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tidegate::{AllDecision, Limiter, ManualClock, Switch};
use tidegate_http::{GateRule, Headers, OnClosed, RateLimitLayer, Reason};
use tidegate_rules::RulesDecision;
use tonic::Code;
use tonic_types::StatusExt;

use super::fixture::{Reply, Tested, by_key, request, three_a_minute};
use super::rules;

/// A rule that denies, one in shadow mode, and one that denies nothing.
const RULES: &str = "
descriptors:
  - { key: api_key, rate_limit: { name: keys, unit: hour, requests_per_unit: 1 } }
  - { key: user, shadow_mode: true, rate_limit: { name: users, unit: hour, requests_per_unit: 1 } }
  - { key: user, value: staff, rate_limit: { name: staff, unlimited: true } }
";

async fn switch(limiter: &Limiter, gate: &str, to: Switch) {
    limiter.control().switch(gate, to, None).await.unwrap();
}

/// Asserts that an operator has closed this limit.
fn assert_closed(reply: &Reply, status: u16, name: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    let wait = reply.number("retry-after");
    assert_eq!(
        body,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": status,
            "detail": format!(
                "An operator has closed \"{name}\" for now. Try again in {wait} second{}.",
                if wait == 1 { "" } else { "s" }
            ),
            "violated-policies": [name],
        })
    );
    assert_eq!(reply.header("x-ratelimit-remaining"), None, "no unit was counted");
    assert_eq!(reply.header("ratelimit"), None);
}

#[tokio::test]
async fn closed_gate_is_a_503_with_its_own_problem_or_429_as_configured() {
    let limiter = Limiter::in_memory();
    let rule = |name| GateRule::new(three_a_minute(&limiter, name), by_key());
    let layer = RateLimitLayer::of([rule("api"), rule("login")]);
    switch(&limiter, "login", Switch::Closed).await;
    let tested = Tested::new(layer.clone());
    assert_closed(&tested.get("a").await, 503, "login");
    assert_closed(&Tested::new(layer.on_closed(OnClosed::TooManyRequests)).get("a").await, 429, "login");
    assert_eq!(tested.calls(), 0);
    limiter.control().end_switch("login").await.unwrap();
    assert_eq!(tested.get("a").await.number("x-ratelimit-remaining"), 2, "nothing was charged");
}

#[tokio::test]
async fn exhausted_quota_stays_a_429_and_a_closed_gate_beside_it_is_named() {
    let limiter = Limiter::in_memory();
    let rule = |name| GateRule::new(three_a_minute(&limiter, name), by_key());
    let tested = Tested::new(RateLimitLayer::of([rule("api"), rule("login")]));
    for _ in 0..3 {
        tested.get("a").await;
    }
    assert_eq!(tested.get("a").await.status, StatusCode::TOO_MANY_REQUESTS);
    switch(&limiter, "login", Switch::Closed).await;
    assert_closed(&tested.get("a").await, 503, "login");
}

#[tokio::test]
async fn retry_times_at_a_closed_gate_spread() {
    let limiter = Limiter::in_memory();
    let layer = RateLimitLayer::new(three_a_minute(&limiter, "api"), by_key());
    switch(&limiter, "api", Switch::Closed).await;
    for (headers, waits) in
        [(Headers::new(), 1..=10), (Headers::new().retry_jitter(Duration::from_secs(2)), 1..=12)]
    {
        let tested = Tested::new(layer.clone().headers(headers));
        let mut found = BTreeSet::new();
        for _ in 0..1_000 {
            found.insert(tested.get("a").await.number("retry-after"));
        }
        assert_eq!(found, waits.collect(), "each value occurs within 1,000 tries");
    }
}

#[tokio::test]
async fn closed_gate_is_unavailable_for_grpc() {
    let limiter = Limiter::in_memory();
    let layer = RateLimitLayer::new(three_a_minute(&limiter, "api"), by_key());
    switch(&limiter, "api", Switch::Closed).await;
    let mut request = request("a");
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    *request.method_mut() = http::Method::POST;
    let reply = Tested::new(layer.on_closed(OnClosed::TooManyRequests)).send(request).await;
    let status = tonic::Status::from_header_map(&reply.headers).unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.get_details_retry_info().unwrap().retry_delay.unwrap() >= Duration::from_secs(1));
}

#[tokio::test]
async fn request_does_not_wait_for_a_closed_gate() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let layer = RateLimitLayer::new(three_a_minute(&limiter, "api"), by_key());
    let tested = Tested::new(layer.wait(Duration::from_secs(60), 10));
    switch(&limiter, "api", Switch::Closed).await;
    let sent = tested.begin(request("a")).await;
    assert!(sent.is_finished(), "the clock stands still, so a waiting request would not end");
    assert_closed(&sent.await.unwrap(), 503, "api");
}

#[tokio::test]
async fn closed_rules_of_files_tell_clients_so() {
    for (headers, gate, name) in [
        (&[("x-api-key", "a")][..], "keys", "keys"),
        (&[("x-api-key", "a"), ("x-user", "ada")], "users", "users"),
        (&[("x-user", "staff")], "staff", "staff"),
    ] {
        let limiter = Limiter::in_memory();
        let bound = rules::rules(RULES).bind(&limiter);
        let gate = bound.rules().iter().find(|rule| rule.name() == Some(gate)).unwrap().gate_name();
        let layer = RateLimitLayer::with_rules(bound, "api").unwrap();
        let tested = Tested::new(layer.on_rejection(|parts, rejection| async move {
            assert!(matches!(rejection.reason(), Reason::Closed(_)));
            assert!(rejection.rules_decision().is_some_and(|decision| !decision.is_allowed()));
            rejection.response(&parts)
        }));
        switch(&limiter, &gate, Switch::Closed).await;
        assert_closed(&tested.send(rules::request(headers)).await, 503, name);
        assert_eq!(tested.calls(), 0);
    }
}

#[tokio::test]
async fn shadow_limits_leave_a_trace_in_a_header_if_it_is_switched_on() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let shadow = GateRule::new(three_a_minute(&limiter, "login").shadow(true), by_key()).name("log\"in");
    let layer = RateLimitLayer::of([GateRule::new(three_a_minute(&limiter, "api"), by_key()), shadow]);
    assert_eq!(Tested::new(layer.clone()).get("a").await.header("x-ratelimit-shadow"), None);
    let tested = Tested::with(layer.headers(Headers::new().shadow(true)), |request| {
        let decision = request.extensions().get::<AllDecision>().unwrap();
        assert_eq!(decision.each_alone()[1].gate(), "login");
        let is_denied = decision.each_alone()[1].is_shadow();
        async move { http::Response::new(is_denied.to_string()) }
    });
    let reply = tested.get("a").await;
    assert_eq!(reply.header("x-ratelimit-shadow"), Some(r#""log\"in";r=1;t=40"#));
    assert_eq!((reply.limits().len(), &*reply.body), (1, "false"));
    tested.get("a").await;
    let rejected = tested.get("a").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS, "by the other gate");
    assert_eq!(rejected.header("x-ratelimit-shadow"), Some(r#""log\"in";r=0;t=20;denied"#));
    switch(&limiter, "api", Switch::Shadow).await;
    let admitted = tested.get("a").await;
    assert_eq!((admitted.status, &*admitted.body), (StatusCode::OK, "true"));
    assert_eq!(
        admitted.header("x-ratelimit-shadow"),
        Some(r#""api";r=0;t=20;denied, "log\"in";r=0;t=20;denied"#)
    );
}

#[tokio::test]
async fn shadow_rules_of_files_leave_a_trace_in_the_header_and_the_extension() {
    let layer = RateLimitLayer::with_rules(rules::rules(RULES).bind(&Limiter::in_memory()), "api").unwrap();
    let tested = Tested::with(layer.headers(Headers::new().shadow(true)), |request| {
        let decision = request.extensions().get::<RulesDecision>().unwrap();
        let shadow = decision.outcomes().iter().filter_map(|outcome| outcome.decision());
        let denied = shadow.filter(|decision| decision.is_shadow()).count();
        async move { http::Response::new(denied.to_string()) }
    });
    let ada = || rules::request(&[("x-user", "ada")]);
    let first = tested.send(ada()).await;
    let trace = |reply: &Reply| reply.header("x-ratelimit-shadow").unwrap().to_owned();
    assert!(trace(&first).starts_with(r#""users";r=0;t="#) && !trace(&first).contains("denied"), "{first:?}");
    let second = tested.send(ada()).await;
    assert_eq!((second.status, &*second.body), (StatusCode::OK, "1"));
    assert!(trace(&second).starts_with(r#""users";r=0;t="#) && trace(&second).ends_with(";denied"));
    let both = || rules::request(&[("x-user", "ada"), ("x-api-key", "a")]);
    tested.send(both()).await;
    let rejected = tested.send(both()).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(trace(&rejected).ends_with(";denied"), "{rejected:?}");
}

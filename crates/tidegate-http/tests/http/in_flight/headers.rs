//! The headers that report an in-flight limit.

use http::{HeaderMap, Response, StatusCode};
use tidegate::{Limiter, ManualClock, Quota};
use tidegate_http::{Draft, Headers, RateLimitLayer, Rejection};

use super::fixture::{Open, layer, memory, memory_with};
use crate::http::fixture::{Reply, Tested, by_key, request};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::HOUR;

/// Returns the headers that report limits, as text.
fn limits(headers: &HeaderMap) -> Vec<String> {
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-shadow"];
    let names = names.iter().chain(&["ratelimit-policy", "ratelimit"]);
    let line = |name: &&str| Some(format!("{name}: {}", headers.get(*name)?.to_str().unwrap()));
    names.filter_map(line).collect()
}

fn is_hint(reply: &Reply) -> bool {
    reply.header("retry-after") == Some("1")
}

fn limiter() -> Limiter {
    memory_with(&ManualClock::new())
}

#[tokio::test]
async fn draft_11_reports_the_unit_and_no_times() {
    let gate = limiter().gate("uploads", Quota::in_flight(2));
    let first = Open::begin(layer(&gate)).await;
    let policy = r#"ratelimit-policy: "uploads";q=2;qu="concurrent-requests""#;
    assert_eq!(limits(first.response.headers()), [policy, r#"ratelimit: "uploads";r=1"#]);
    let second = Open::begin(layer(&gate)).await;
    assert_eq!(limits(second.response.headers()), [policy, r#"ratelimit: "uploads";r=0"#]);

    let denied = Tested::new(layer(&gate)).get("a").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limits(&denied.headers), [policy, r#"ratelimit: "uploads";r=0"#]);
    assert!(is_hint(&denied), "{denied:?}");
    let problem: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    let detail = "The limit \"uploads\" of 2 concurrent requests is reached. Try again in 1 second.";
    assert_eq!(problem["detail"], detail);
    assert_eq!(problem["violated-policies"], serde_json::json!(["uploads"]));
}

#[tokio::test]
async fn headers_of_one_limit_report_the_rate() {
    let limiter = limiter();
    let uploads = limiter.gate("uploads", Quota::in_flight(1));
    let rate = limiter.gate("rate", Quota::fixed_window(10, HOUR));
    let layer = |draft| {
        let headers = Headers::new().draft(Some(draft));
        RateLimitLayer::new(uploads.clone(), by_key()).and(rate.clone(), by_key()).headers(headers)
    };
    let open = Open::begin(layer(Draft::Eleven)).await;
    let x_ratelimit = ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 9", "x-ratelimit-reset: 3600"];
    let eleven = [
        r#"ratelimit-policy: "uploads";q=1;qu="concurrent-requests", "rate";q=10;w=3600"#,
        r#"ratelimit: "uploads";r=0, "rate";r=9;t=3600"#,
    ];
    assert_eq!(limits(open.response.headers()), [&x_ratelimit[..], &eleven].concat());
    let seven = ["ratelimit-policy: 10;w=3600", "ratelimit: limit=10, remaining=9, reset=3600"];
    for (draft, lines) in [(Draft::Eleven, eleven), (Draft::Seven, seven)] {
        let denied = Tested::new(layer(draft)).get("a").await;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS, "by the in-flight limit");
        assert_eq!(limits(&denied.headers), [&x_ratelimit[..], &lines].concat());
        assert!(is_hint(&denied), "{denied:?}");
    }
}

#[tokio::test]
async fn shadow_header_reports_no_times() {
    let gate = limiter().gate("uploads", Quota::in_flight(1)).shadow(true);
    let layer = RateLimitLayer::new(gate, by_key()).headers(Headers::new().shadow(true));
    let first = Open::begin(layer.clone()).await;
    assert_eq!(limits(first.response.headers()), [r#"x-ratelimit-shadow: "uploads";r=0"#]);
    let second = Open::begin(layer).await;
    assert_eq!(limits(second.response.headers()), [r#"x-ratelimit-shadow: "uploads";r=0;denied"#]);
}

#[tokio::test]
async fn acquired_gate_reports_as_the_layer_does() {
    let gate = memory().gate("uploads", Quota::in_flight(1));
    let (decision, permit) = gate.acquire("a").await.unwrap().into_parts();
    let admitted = limits(&Headers::new().of(&gate, &decision));
    drop(permit);
    super::fixture::holds(&gate, 0, "released").await;
    let open = Open::begin(layer(&gate)).await;
    assert_eq!(limits(open.response.headers()), admitted);

    let (decision, permit) = gate.acquire("a").await.unwrap().into_parts();
    assert!(permit.is_none());
    let denied = Tested::new(layer(&gate)).get("a").await;
    assert_eq!(limits(&Headers::new().of(&gate, &decision)), limits(&denied.headers));
    let response: Response<String> =
        Rejection::of(&gate, decision).response_with_headers(&request("a").into_parts().0);
    assert_eq!((response.status(), limits(response.headers())), (denied.status, limits(&denied.headers)));
    assert_eq!(*response.body(), denied.body);
}

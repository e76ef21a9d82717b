//! Responses of the layer when it rejects a request.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use serde_json::json;
use tidegate::{Ban, Limiter, ManualClock, Quota, Rate, Stub};
use tidegate_http::{GateRule, Headers, Key, RateLimitLayer, Reason, Rejection};
use tonic::Code;
use tonic_types::StatusExt;

use super::fixture::{Reply, Tested, by_key, request, three_a_minute};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a service with a limit of 1 per hour, 0.5 s after its only unit was used.
async fn exhausted(layer: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Tested {
    let clock = ManualClock::new();
    let gate = Limiter::in_memory_with(clock.clone()).gate("login", Quota::fixed_window(1, HOUR));
    let tested = Tested::new(layer(RateLimitLayer::new(gate, by_key())));
    tested.get("a").await;
    clock.advance(Duration::from_millis(500));
    tested
}

/// Sends a request with this `Accept` header.
async fn get_accepting(tested: &Tested, accept: &'static str) -> Reply {
    let mut request = request("a");
    request.headers_mut().insert("accept", accept.parse().unwrap());
    tested.send(request).await
}

#[tokio::test]
async fn denial_body_is_problem_json_or_plain_text() {
    let tested = exhausted(|layer| layer).await;
    let problem = tested.get("a").await;
    assert_eq!(problem.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
    assert_eq!(problem.header("cache-control"), Some("no-store"));
    assert_eq!(problem.header("retry-after"), Some("3600"), "3599.5 s, rounded up");
    let body: serde_json::Value = serde_json::from_str(&problem.body).unwrap();
    assert_eq!(
        body,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "The limit \"login\" of 1 in 3600 seconds is exceeded. Try again in 3600 seconds.",
            "violated-policies": ["login"],
        })
    );
    let text = get_accepting(&tested, "text/plain").await;
    assert_eq!(text.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(
        text.body,
        "The limit \"login\" of 1 in 3600 seconds is exceeded. Try again in 3600 seconds.\n"
    );
    assert_eq!(get_accepting(&tested, "application/json").await.body, problem.body);
}

#[tokio::test]
async fn denial_of_a_blocked_or_banned_key_says_that_it_is_blocked() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let blocked = limiter.gate("login", Quota::fixed_window(9, HOUR));
    blocked.block("a", HOUR).await.unwrap();
    let banned = limiter.gate("api", Quota::fixed_window(1, HOUR)).ban(Ban::after(2, HOUR).lasting(2 * HOUR));
    let tested = Tested::new(RateLimitLayer::new(banned, by_key()));
    let mut texts = Vec::new();
    for _ in 0..4 {
        texts.push(get_accepting(&tested, "text/plain").await.body);
    }
    texts.push(get_accepting(&Tested::new(RateLimitLayer::new(blocked, by_key())), "text/plain").await.body);
    let exceeded = "The limit \"api\" of 1 in 3600 seconds is exceeded. Try again in 3600 seconds.\n";
    let blocks = |name, wait| {
        format!(
            "The limit \"{name}\" blocks the key of this request, after too many denials or by an operator. Try \
             again in {wait} seconds.\n"
        )
    };
    let ban = blocks("api", 7_200);
    assert_eq!(texts[1..], [exceeded, &ban, &ban, &blocks("login", 3_600)]);
}

#[tokio::test]
async fn rejection_has_the_link_to_help_in_each_of_its_forms() {
    const LINK: &str = "https://shop.example/limits";
    let tested = exhausted(|layer| layer.help(LINK)).await;
    let problem: serde_json::Value = serde_json::from_str(&tested.get("a").await.body).unwrap();
    assert_eq!(problem["help"], LINK);
    let text = get_accepting(&tested, "text/plain").await.body;
    assert!(text.ends_with(&format!(" Try again in 3600 seconds.\nHelp: {LINK}\n")), "{text}");
    let reply = tested.send(grpc("a", "application/grpc")).await;
    let status = tonic::Status::from_header_map(&reply.headers).unwrap();
    assert!(status.get_details_retry_info().is_some());
    assert_eq!(status.get_details_help().unwrap().links[0].url, LINK);
    // A handler that decides itself, by the layer or by the gate.
    let gate = Limiter::in_memory().gate("mail", Quota::fixed_window(1, HOUR));
    let layer = RateLimitLayer::new(gate.clone(), by_key()).help(LINK);
    let (parts, _) = request("a").into_parts();
    assert!(layer.admit(&parts).await.is_ok());
    let Err(by_layer) = layer.admit(&parts).await else { panic!("a second request was admitted") };
    let by_gate = Rejection::of(&gate, gate.check("a").await.unwrap()).with_help(LINK);
    for rejection in [by_layer, by_gate] {
        assert!(rejection.response(&parts).body().contains(&format!("\"help\":\"{LINK}\"")));
    }
}

#[tokio::test]
async fn problem_names_exactly_the_exceeded_limits() {
    let limiter = Limiter::in_memory();
    let rule =
        |name: &str, limit| GateRule::new(limiter.gate(name, Quota::fixed_window(limit, HOUR)), by_key());
    let rules = [rule("one", 2), rule("two", 9), rule("three", 2).name("the \"3rd\"\n")];
    let tested = Tested::new(RateLimitLayer::of(rules));
    tested.get("a").await;
    tested.get("a").await;
    let body: serde_json::Value = serde_json::from_str(&tested.get("a").await.body).unwrap();
    assert_eq!(body["violated-policies"], json!(["one", "the \"3rd\"\n"]));
}

#[tokio::test]
async fn other_rejections_say_what_to_do() {
    let gate = three_a_minute(&Limiter::in_memory(), "api");
    let missing = Tested::new(RateLimitLayer::new(gate, by_key()));
    let failing = three_a_minute(&Limiter::stub(Stub::Fail), "api");
    let failing =
        Tested::new(RateLimitLayer::new(failing.on_failure(tidegate::OnFailure::Error), Key::constant("")));
    for (tested, status, title, words) in
        [(missing, 400, "Bad Request", "lacks"), (failing, 503, "Service Unavailable", "Try again")]
    {
        let reply = tested.send(Request::new(String::new())).await;
        assert_eq!(reply.status, status);
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!((body["type"].as_str(), body["title"].as_str()), (Some("about:blank"), Some(title)));
        assert!(body["detail"].as_str().unwrap().contains(words), "{body}");
        assert_eq!(body.get("violated-policies"), None);
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("retry-after").is_some(), status == 503);
    }
}

#[tokio::test]
async fn cost_above_a_limit_is_a_400_with_the_cost_and_the_limit_by_name() {
    let limiter = Limiter::in_memory();
    let gate = three_a_minute(&limiter, "api");
    let other = GateRule::new(three_a_minute(&limiter, "other"), by_key());
    let named = GateRule::new(gate.clone(), by_key()).name("tokens").cost(|_| 4);
    for (layer, name) in [
        (RateLimitLayer::of([other.cost(|_| 1), named]), "tokens"),
        (RateLimitLayer::new(gate, by_key()).cost(|_| 4), "api"),
    ] {
        let reply = Tested::new(layer).get("a").await;
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        let expected = json!({
            "type": "urn:tidegate:problem:cost-above-limit", "title": "The cost can never pass the limit.", "status": 400,
            "detail": format!(
                "This request costs 4, which the limit \"{name}\" of 3 never permits. Send a smaller request."
            ),
            "policy": name, "cost": 4, "limit": 3,
        });
        assert_eq!((reply.status.as_u16(), body), (400, expected));
        assert_eq!((reply.header("retry-after"), reply.header("cache-control")), (None, Some("no-store")));
    }
}

#[tokio::test]
async fn custom_response_replaces_the_rejection() {
    let tested = exhausted(|layer| {
        layer.on_rejection(|parts, refusal| async move {
            tokio::task::yield_now().await;
            match refusal.reason() {
                Reason::Denied(decision) if parts.uri.path() == "/cached" => {
                    Response::new(format!("as of yesterday ({})", decision.binding().gate()))
                }
                _ => refusal.response(&parts),
            }
        })
    })
    .await;
    let cached = Request::get("/cached").header("x-api-key", "a").body(String::new()).unwrap();
    let cached = tested.send(cached).await;
    assert_eq!((cached.status, &*cached.body), (StatusCode::OK, "as of yesterday (login)"));
    assert_eq!(cached.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(cached.header("cache-control"), Some("no-store"), "it is not the page");
    assert_eq!(cached.header("retry-after"), None, "the custom response is no rejection");
    let rejected = tested.get("a").await;
    assert_eq!(
        (rejected.status, rejected.header("retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, Some("3600"))
    );
    assert_eq!(tested.calls(), 1);
}

#[tokio::test]
async fn jitter_only_lengthens_retry_after() {
    let jitter = Headers::new().retry_jitter(Duration::from_secs(9));
    let tested = exhausted(|layer| layer.headers(jitter)).await;
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let reply = tested.get("a").await;
        let wait = reply.number("retry-after");
        assert_eq!([reply.number("x-ratelimit-reset"), reply.limits()[0].reset as u64], [wait; 2]);
        assert!(reply.body.contains(&format!("Try again in {wait} seconds")), "{}", reply.body);
        waits.insert(wait);
    }
    assert_eq!(waits, (3_600..=3_609).collect(), "each value occurs within 300 tries");
}

fn grpc(key: &str, content_type: &'static str) -> Request<String> {
    let mut request = request(key);
    *request.method_mut() = Method::POST;
    request.headers_mut().insert("content-type", content_type.parse().unwrap());
    request
}

#[tokio::test]
async fn grpc_rejection_has_status_and_retry_delay() {
    let tested = exhausted(|layer| layer).await;
    for (content_type, answered) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("application/grpc+json; charset=utf-8", "application/grpc"),
        ("application/grpc+anything", "application/grpc"),
        ("application/grpc-web", "application/grpc-web+proto"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
    ] {
        let reply = tested.send(grpc("a", content_type)).await;
        assert_eq!((reply.status, &*reply.body), (StatusCode::OK, ""), "trailers only");
        assert_eq!(reply.header("content-type"), Some(answered));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
        let status = tonic::Status::from_header_map(&reply.headers).unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("\"login\""), "{}", status.message());
        let retry = status.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert_eq!(retry, Duration::from_secs(3_600));
    }
    assert_eq!(tested.send(grpc("b", "application/grpc")).await.body, "hello");
}

#[tokio::test]
async fn only_a_post_with_an_exact_content_type_gets_a_grpc_response() {
    let tested = exhausted(|layer| layer).await;
    let get = |content_type| {
        let mut request = grpc("a", content_type);
        *request.method_mut() = Method::GET;
        request
    };
    for request in [
        get("application/grpc"),
        get("application/grpc-web+proto"),
        grpc("a", "application/grpcfoo"),
        grpc("a", "application/grpc-web-text"),
        grpc("a", "application/grpc-web-text+proto"),
        grpc("a", "application/grpc-"),
        grpc("a", "application/json"),
    ] {
        let described = format!("{} {:?}", request.method(), request.headers()["content-type"]);
        let reply = tested.send(request).await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{described}");
        assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{described}");
        assert_eq!(reply.header("grpc-status"), None, "{described}");
    }
}

#[tokio::test]
async fn every_rejection_has_a_grpc_status() {
    let gate = three_a_minute(&Limiter::in_memory(), "api");
    let failing = three_a_minute(&Limiter::stub(Stub::Fail), "api");
    for (layer, code) in [
        (RateLimitLayer::new(gate.clone(), Key::header("x-other")), Code::InvalidArgument),
        (RateLimitLayer::new(gate, by_key()).cost(|_| 4), Code::OutOfRange),
        (RateLimitLayer::new(failing, by_key()), Code::Unavailable),
    ] {
        let reply = Tested::new(layer).send(grpc("a", "application/grpc")).await;
        let status = tonic::Status::from_header_map(&reply.headers).unwrap();
        assert_eq!(status.code(), code);
        assert_eq!(status.get_details_retry_info().is_some(), code == Code::Unavailable);
    }
}

#[tokio::test]
async fn rejection_text_uses_the_singular_for_one_second() {
    let gate = Limiter::in_memory().gate("api", Quota::token_bucket(1, Rate::per_second(1)));
    let tested = Tested::new(RateLimitLayer::new(gate, by_key()));
    tested.get("a").await;
    let reply = get_accepting(&tested, "text/plain").await;
    assert_eq!(reply.body, "The limit \"api\" of 1 in 1 second is exceeded. Try again in 1 second.\n");
}

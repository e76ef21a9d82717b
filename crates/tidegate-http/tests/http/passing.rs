//! Requests that reach the service, and requests that do not.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate::{AllDecision, Decision, Limiter, ManualClock, OnFailure, Quota};
use tidegate_http::{GateRule, Key, MissingKey, OnError, RateLimitLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::fixture::{Tested, by_key, request, three_a_minute};
use crate::support::fixture::{builder, closed_port};

#[tokio::test]
async fn denied_request_does_not_reach_the_service() {
    let clock = ManualClock::new();
    let limiter = Limiter::in_memory_with(clock.clone());
    let tested = Tested::new(RateLimitLayer::new(three_a_minute(&limiter, "api"), by_key()));
    for _ in 0..3 {
        assert_eq!(tested.get("a").await.body, "hello");
    }
    for _ in 0..2 {
        assert_eq!(tested.get("a").await.status, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(tested.calls(), 3);
    assert_eq!(tested.get("b").await.status, StatusCode::OK, "another key has its own limit");
    clock.advance(Duration::from_secs(20));
    assert_eq!(tested.get("a").await.status, StatusCode::OK);
}

#[tokio::test]
async fn several_gates_admit_together_or_charge_nothing() {
    let limiter = Limiter::in_memory();
    let (user, all) = (three_a_minute(&limiter, "user"), limiter.gate("all", Quota::fixed_window(5, HOUR)));
    let layer = RateLimitLayer::new(user.clone(), by_key()).and(all.clone(), Key::constant("all"));
    let tested = Tested::new(layer);
    for (key, status) in
        [("a", 200), ("a", 200), ("a", 200), ("a", 429), ("b", 200), ("b", 200), ("b", 429), ("c", 429)]
    {
        assert_eq!(tested.get(key).await.status, status, "{key}");
    }
    assert_eq!(all.peek("all").await.unwrap().remaining(), 0);
    assert_eq!(user.peek("b").await.unwrap().remaining(), 1, "denied by the other gate, so not charged");
    assert_eq!(user.peek("c").await.unwrap().remaining(), 3);
}

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn the_cost_of_a_request_is_charged() {
    let limiter = Limiter::in_memory();
    let gate = limiter.gate("upload", Quota::fixed_window(10, HOUR));
    let cost = |parts: &http::request::Parts| parts.uri.query().map_or(1, |query| query.parse().unwrap());
    let tested = Tested::new(RateLimitLayer::new(gate.clone(), by_key()).cost(cost));
    let get = async |uri: &str| {
        let request = Request::get(uri).header("x-api-key", "a").body(String::new()).unwrap();
        tested.send(request).await
    };
    assert_eq!(get("/?7").await.header("x-ratelimit-remaining"), Some("3"));
    assert_eq!(get("/?4").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get("/").await.header("x-ratelimit-remaining"), Some("2"));
    let free = get("/?0").await;
    assert_eq!((free.status, free.header("x-ratelimit-remaining")), (StatusCode::OK, None), "not checked");
    assert_eq!(gate.peek("a").await.unwrap().remaining(), 2);
    let calls = tested.calls();
    let too_costly = get("/?11").await;
    assert_eq!(too_costly.status, StatusCode::BAD_REQUEST);
    assert_eq!(too_costly.header("retry-after"), None, "the request can never pass");
    assert_eq!(tested.calls(), calls);
}

#[tokio::test]
async fn cost_above_the_limit_is_always_rejected() {
    let gate = Limiter::in_memory().gate("upload", Quota::fixed_window(10, HOUR));
    let layer = RateLimitLayer::new(gate, by_key()).cost(|_| 11).on_error(OnError::Admit);
    let tested = Tested::new(layer.wait(Duration::from_secs(1), 1));
    assert_eq!(tested.get("a").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(tested.calls(), 0);
}

#[tokio::test]
async fn missing_key_is_rejected_shared_or_skipped_as_configured() {
    let limiter = Limiter::in_memory();
    let none = || Request::new(String::new());
    for (missing_key, statuses) in [
        (MissingKey::Reject, [400, 400, 400, 400]),
        (MissingKey::Share, [200, 200, 200, 429]),
        (MissingKey::Skip, [200, 200, 200, 200]),
    ] {
        let gate = three_a_minute(&limiter, "api");
        let tested = Tested::new(RateLimitLayer::new(gate, by_key()).missing_key(missing_key));
        for status in statuses {
            assert_eq!(tested.send(none()).await.status, status, "{missing_key:?}");
        }
        assert_eq!(tested.get("a").await.status, 200, "a key has its own limit");
        three_a_minute(&limiter, "api").reset("a").await.unwrap();
    }
    let unset = Tested::new(RateLimitLayer::new(three_a_minute(&limiter, "unset"), by_key()));
    assert_eq!(unset.send(none()).await.status, 400, "a missing key is rejected by default");
}

#[tokio::test]
async fn rules_are_chosen_for_each_request() {
    let limiter = Limiter::in_memory();
    let rule =
        |name: &str, limit| GateRule::new(limiter.gate(name, Quota::fixed_window(limit, HOUR)), by_key());
    let (free, pro) = (rule("free", 1), rule("pro", 2));
    let choose = move |tier: Option<&str>| match tier {
        Some("pro") => vec![pro.clone()],
        Some("staff") => vec![],
        _ => vec![free.clone()],
    };
    let tier = |parts: &http::request::Parts| parts.uri.query().map(str::to_owned);
    let (sync, lookup) = (choose.clone(), choose);
    for layer in [
        RateLimitLayer::choose(move |parts| sync(tier(parts).as_deref())),
        RateLimitLayer::lookup(move |parts| {
            let (tier, choose) = (tier(parts), lookup.clone());
            async move {
                tokio::task::yield_now().await;
                choose(tier.as_deref())
            }
        }),
    ] {
        let tested = Tested::new(layer);
        let key = format!("{:p}", &raw const tested);
        let get = async |uri: &str| {
            let request = Request::get(uri).header("x-api-key", &key).body(String::new()).unwrap();
            tested.send(request).await.status.as_u16()
        };
        assert_eq!([get("/").await, get("/").await], [200, 429]);
        assert_eq!([get("/?pro").await, get("/?pro").await, get("/?pro").await], [200, 200, 429]);
        for _ in 0..5 {
            assert_eq!(get("/?staff").await, 200);
        }
        limiter.gate("free", Quota::fixed_window(1, HOUR)).reset(&key).await.unwrap();
        limiter.gate("pro", Quota::fixed_window(2, HOUR)).reset(&key).await.unwrap();
    }
}

#[tokio::test]
async fn skipped_request_is_not_checked() {
    let limiter = Limiter::in_memory();
    let layer = RateLimitLayer::new(limiter.gate("api", Quota::fixed_window(1, HOUR)), by_key());
    let tested = Tested::new(layer.skip(|parts| parts.uri.path() == "/health"));
    for _ in 0..3 {
        let reply = tested.send(Request::get("/health").body(String::new()).unwrap()).await;
        assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (StatusCode::OK, None));
    }
    assert_eq!([tested.get("a").await.status, tested.get("a").await.status], [200, 429]);
}

#[tokio::test]
async fn without_redis_requests_fail_with_503_or_pass_as_configured() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = builder(&url).build().unwrap();
    let gate = three_a_minute(&limiter, "api");
    for several in [false, true] {
        let layer = RateLimitLayer::new(gate.clone(), by_key());
        let layer = if several { layer.and(gate.clone(), Key::constant("all")) } else { layer };
        let waiting = layer.clone().wait(Duration::from_secs(1), 1);
        for layer in [layer, waiting] {
            let rejecting = Tested::new(layer.clone());
            let reply = rejecting.get("a").await;
            assert_eq!(
                (reply.status, reply.header("retry-after")),
                (StatusCode::SERVICE_UNAVAILABLE, Some("1"))
            );
            assert!(
                !reply.body.contains("edis") && !reply.body.contains("127"),
                "no internals: {}",
                reply.body
            );
            assert_eq!(rejecting.calls(), 0);
            let passing = Tested::new(layer.on_error(OnError::Admit));
            let reply = passing.get("a").await;
            assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (StatusCode::OK, None));
        }
    }
    let open = Tested::new(RateLimitLayer::new(gate.clone().on_failure(OnFailure::Open), by_key()));
    assert_eq!(open.get("a").await.status, StatusCode::OK);
    let local = Tested::new(RateLimitLayer::new(gate.on_failure(OnFailure::Local), by_key()));
    for status in [200, 200, 200, 429] {
        assert_eq!(local.get("a").await.status, status, "the local fallback admits and denies");
    }
}

#[tokio::test]
#[should_panic(expected = "must belong to one limiter")]
async fn gates_of_two_limiters_in_one_layer_panic() {
    let gate = || three_a_minute(&Limiter::in_memory(), "api");
    let _ = RateLimitLayer::new(gate(), by_key()).and(gate(), by_key());
}

#[test]
#[should_panic(expected = "needs a rule")]
fn layer_without_a_rule_panics() {
    let _ = RateLimitLayer::of([]);
}

#[tokio::test]
async fn service_error_is_passed_through() {
    #[derive(Debug, PartialEq)]
    struct OutOfPaper;
    let gate = three_a_minute(&Limiter::in_memory(), "api");
    let inner = service_fn(|_: Request<String>| async { Err::<Response<String>, _>(OutOfPaper) });
    let service = RateLimitLayer::new(gate, by_key()).layer(inner);
    assert_eq!(service.oneshot(request("a")).await.unwrap_err(), OutOfPaper);
}

/// A service that panics unless the called clone itself was polled ready.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, calls: self.calls.clone() }
    }
}

impl Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called before poll_ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test]
async fn only_the_ready_clone_of_the_service_is_called() {
    let limiter = Limiter::in_memory();
    let strict = Strict::default();
    let calls = strict.calls.clone();
    let mut service = RateLimitLayer::new(three_a_minute(&limiter, "api"), by_key()).layer(strict);
    let mut responses = Vec::new();
    for _ in 0..5 {
        responses.push(service.ready().await.unwrap().call(request("a")));
    }
    let responses = futures_util::future::join_all(responses).await;
    let ok = responses.into_iter().filter(|response| response.as_ref().unwrap().status() == 200).count();
    assert_eq!((ok, calls.load(Ordering::SeqCst)), (3, 3));
}

#[tokio::test]
async fn axum_handler_receives_the_decision() {
    let limiter = Limiter::in_memory();
    let layer = RateLimitLayer::new(three_a_minute(&limiter, "api"), by_key())
        .skip(|parts| parts.uri.path() == "/skipped");
    let one = |Extension(decision): Extension<Decision>| async move {
        format!("{} {}", decision.gate(), decision.remaining())
    };
    let maybe = |decision: Option<Extension<AllDecision>>| async move { format!("{}", decision.is_some()) };
    let app = Router::new()
        .route("/one", get(one))
        .route("/maybe", get(maybe))
        .route("/skipped", get(maybe))
        .layer(layer)
        .route("/outside", get(one));
    let get = async |uri: &str| {
        let request = Request::get(uri).header("x-api-key", "a").body(axum::body::Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(get("/one").await, (200, "api 2".to_owned()));
    assert_eq!(get("/maybe").await, (200, "true".to_owned()));
    assert_eq!(get("/skipped").await, (200, "false".to_owned()));
    assert_eq!(get("/outside").await.0, 500);
}

#[tokio::test]
async fn colocated_rules_work_in_a_cluster() {
    let world = crate::support::world::World::cluster_with(|builder| builder);
    let tenant = GateRule::new(three_a_minute(&world.limiter, "tenant"), Key::constant("tenant:7"));
    let user = GateRule::new(three_a_minute(&world.limiter, "user"), by_key());
    let colocated = user.clone().colocate_with(Key::constant("tenant:7"));
    let apart = Tested::new(RateLimitLayer::of([tenant.clone(), user]));
    let together = Tested::new(RateLimitLayer::of([tenant, colocated]));
    let mut apart_statuses = Vec::new();
    for key in ["a", "b", "c", "d"] {
        apart_statuses.push(apart.get(key).await.status.as_u16());
    }
    assert!(apart_statuses.contains(&500), "their keys are on several nodes: {apart_statuses:?}");
    let admitted = apart_statuses.iter().filter(|status| **status == 200).count();
    for at in admitted..4 {
        let status = together.get("e").await.status.as_u16();
        assert_eq!(status, if at < 3 { 200 } else { 429 });
    }
}

#[tokio::test]
async fn hyper_serves_the_layer_without_an_adapter() {
    let limiter = Limiter::in_memory();
    let inner = service_fn(|_: Request<hyper::body::Incoming>| async {
        Ok::<_, Infallible>(Response::new("hello".to_owned()))
    });
    let service = RateLimitLayer::new(three_a_minute(&limiter, "api"), Key::constant("all")).layer(inner);
    let (client, server) = tokio::io::duplex(4_096);
    let serving = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(server), TowerToHyperService::new(service));
    tokio::spawn(serving);
    let (mut connection, driver) = hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(driver);
    for (status, left) in [(200, "2"), (200, "1"), (200, "0"), (429, "0")] {
        let response = connection.send_request(Request::new(String::new())).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-ratelimit-remaining"], left);
        let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), 1_000).await.unwrap();
        assert_eq!(body == "hello", status == 200);
    }
}

//! Limits inside handlers: `admit`, `Headers::of`, `Rejection::of`, and the bounds of other frameworks.

use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::Body as AxumBody;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use tidegate::{Gate, Limiter, ManualClock, Quota, Rate};
use tidegate_http::{Abandoned, Charge, Draft, Headers, RateLimitLayer, Rejection, ResponseBody, Usage};
use tower::buffer::Buffer;
use tower::{Layer, Service, ServiceExt};

use super::fixture::{Tested, by_key, request, settle};
use crate::support::fixture::{HOUR, soon};

fn parts() -> http::request::Parts {
    request("a").into_parts().0
}

fn gate() -> Gate {
    Limiter::in_memory_with(ManualClock::new()).gate("api", Quota::fixed_window(2, HOUR))
}

async fn remaining(gate: &Gate) -> u64 {
    gate.peek("a").await.unwrap().remaining()
}

/// Returns the headers that report limits.
fn limits(headers: &HeaderMap) -> Vec<(String, String)> {
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit"];
    let names = names.iter().chain(&["ratelimit-policy", "retry-after"]);
    let value = |name: &&str| Some((name.to_string(), headers.get(*name)?.to_str().unwrap().to_owned()));
    names.filter_map(value).collect()
}

#[tokio::test]
async fn admit_decides_and_reports_as_the_layer_does() {
    for headers in
        [Headers::new(), Headers::new().draft(Some(Draft::Seven)).retry_after(false), Headers::none()]
    {
        let inside = RateLimitLayer::new(gate(), by_key()).headers(headers);
        let outside = Tested::new(RateLimitLayer::new(gate(), by_key()).headers(headers));
        for left in [1, 0] {
            let admitted = inside.admit(&parts()).await.unwrap();
            assert_eq!(admitted.decision().unwrap().binding().remaining(), left);
            let response = admitted.respond(Response::new("hello".to_owned())).await;
            assert_eq!(limits(response.headers()), limits(&outside.get("a").await.headers));
        }
        let rejection = inside.admit(&parts()).await.unwrap_err();
        let expected = outside.get("a").await;
        for response in
            [rejection.response_with_headers(&parts()).map(AxumBody::from), rejection.clone().into_response()]
        {
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(limits(response.headers()), limits(&expected.headers));
            assert_eq!(response.headers()["cache-control"], "no-store");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), expected.body);
        }
    }
}

#[tokio::test]
async fn checked_gate_reports_as_the_layer_does() {
    let (gate, same) = (gate(), gate());
    let outside = Tested::new(RateLimitLayer::new(same, by_key()));
    for _ in 0..2 {
        let decision = gate.check("a").await.unwrap();
        assert_eq!(limits(&Headers::new().of(&gate, &decision)), limits(&outside.get("a").await.headers));
    }
    let decision = gate.check("a").await.unwrap();
    let expected = outside.get("a").await;
    assert_eq!(limits(&Headers::new().of(&gate, &decision)), limits(&expected.headers));
    let response = Rejection::of(&gate, decision).into_response();
    assert_eq!((response.status(), limits(response.headers())), (expected.status, limits(&expected.headers)));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), expected.body);
    let shadow = gate.clone().shadow(true);
    let decision = shadow.check("a").await.unwrap();
    assert_eq!(limits(&Headers::new().of(&shadow, &decision)), []);
}

#[tokio::test]
async fn admitted_request_is_charged_by_its_response() {
    let gate = gate();
    let limit = RateLimitLayer::new(gate.clone(), by_key())
        .charge(Charge::when(|response| response.status == StatusCode::UNAUTHORIZED));
    for (status, left) in [(200, 2), (401, 1), (200, 1)] {
        let admitted = limit.admit(&parts()).await.unwrap();
        let response = Response::builder().status(status).body(Full::from("")).unwrap();
        let response: Response<ResponseBody<Full<Bytes>>> = admitted.respond(response).await;
        assert_eq!(response.headers()["x-ratelimit-remaining"], left.to_string());
        assert_eq!(remaining(&gate).await, left);
    }
}

#[tokio::test]
async fn admitted_request_without_a_response_is_abandoned() {
    for (policy, left) in [(Abandoned::Charged, 1), (Abandoned::Refunded, 2), (Abandoned::Used, 0)] {
        let gate = gate();
        let limit = RateLimitLayer::new(gate.clone(), by_key()).charge(Charge::usage().if_abandoned(policy));
        let admitted = limit.admit(&parts()).await.unwrap();
        if policy == Abandoned::Used {
            admitted.usage().unwrap().set(2);
        }
        drop(admitted);
        soon(&format!("{policy:?}"), async || remaining(&gate).await == left).await;
    }
}

#[tokio::test]
async fn units_are_refunded_if_admit_is_dropped_during_its_wait() {
    let clock = ManualClock::new();
    let queue = Quota::leaky_bucket(5, Rate::per_second(1));
    let gate = Limiter::in_memory_with(clock.clone()).gate("queue", queue);
    let limit = RateLimitLayer::new(gate.clone(), by_key());
    drop(limit.admit(&parts()).await.unwrap());
    let waiting = tokio::spawn(async move { limit.admit(&parts()).await.map(drop) });
    settle().await;
    let before = remaining(&gate).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    soon("the position is given back", async || remaining(&gate).await == before + 1).await;
}

async fn report(usage: Usage) -> &'static str {
    usage.add(1);
    "reported"
}

async fn report_if_charged(usage: Option<Usage>) -> &'static str {
    usage.map_or("not charged", |_| "charged")
}

#[tokio::test]
async fn usage_that_nobody_charges_is_an_error() {
    let routes = || Router::new().route("/", get(report)).route("/optional", get(report_if_charged));
    let get = async |app: Router, path: &str| {
        let request = Request::get(path).header("x-api-key", "a").body(AxumBody::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        (
            status,
            String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap(),
        )
    };
    let always = || routes().layer(RateLimitLayer::new(gate(), by_key()));
    let message = "The handler reports its usage, but no rate limit charges it. Set Charge::usage().";
    assert_eq!(get(always(), "/").await, (500, message.to_owned()));
    assert_eq!(get(always(), "/optional").await, (200, "not charged".to_owned()));
    let charged = || routes().layer(RateLimitLayer::new(gate(), by_key()).charge(Charge::usage()));
    assert_eq!(get(charged(), "/").await, (200, "reported".to_owned()));
    assert_eq!(get(charged(), "/optional").await, (200, "charged".to_owned()));
}

/// Buffers the service as salvo's `TowerLayerCompat::compat` does. Has the bounds of that method, and of the
/// handler that it returns.
fn compat<L, S, Q, B>(layer: L, inner: S) -> Buffer<Request<Q>, <L::Service as Service<Request<Q>>>::Future>
where
    L: Layer<S> + Send + Sync + 'static,
    L::Service: Service<Request<Q>, Response = Response<B>> + Send + Sync + 'static,
    <L::Service as Service<Request<Q>>>::Future: Send + 'static,
    <L::Service as Service<Request<Q>>>::Error: std::error::Error + Send + Sync + 'static,
    Q: Body + Send + Sync + 'static,
    B: Body + Send + Sync + 'static,
    B::Data: Into<Bytes> + Send + Debug + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    Buffer::new(layer.layer(inner), 32)
}

/// Salvo's `FlowCtrlService`.
#[derive(Clone)]
struct FlowCtrl;

impl Service<Request<BoxBody<Bytes, io::Error>>> for FlowCtrl {
    type Response = Response<BoxBody<Bytes, io::Error>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<BoxBody<Bytes, io::Error>>) -> Self::Future {
        Box::pin(async { Ok(Response::new(request.into_body())) })
    }
}

#[tokio::test]
async fn layer_satisfies_the_bounds_of_salvo() {
    let layers = [
        RateLimitLayer::new(gate(), by_key()).charge(Charge::usage()).wait(Duration::from_secs(1), 10),
        RateLimitLayer::new(gate(), by_key())
            .on_rejection(|_, rejection| async move { rejection.into_response() }),
    ];
    for layer in layers {
        let service = compat(layer, FlowCtrl);
        for status in [200, 200, 429] {
            let body = Full::from("echo").map_err(|never: Infallible| match never {}).boxed();
            let request = request("a").map(|_| body);
            let response = service.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), status);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body == "echo", status == 200);
        }
    }
}

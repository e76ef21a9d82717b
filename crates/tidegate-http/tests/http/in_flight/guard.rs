//! The guard in the request's extensions.

use std::convert::Infallible;
use std::future::poll_fn;
use std::task::Poll;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate::{Quota, Rate};
use tidegate_http::{RateLimitLayer, RequestPermits};
use tokio::sync::mpsc;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{gates, held, holds, layer, memory};
use crate::http::fixture::{by_key, request};

type Inner = BoxCloneSyncService<Request<String>, Response<Full<Bytes>>, Infallible>;

/// Returns a service that responds at once, and passes on the guard of each request.
fn passing_on() -> (Inner, mpsc::UnboundedReceiver<Option<RequestPermits>>) {
    let (sent, received) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<String>| {
        sent.send(request.extensions().get().cloned()).unwrap();
        std::future::ready(Ok(Response::new(Full::from("hello"))))
    });
    (BoxCloneSyncService::new(service), received)
}

#[tokio::test]
async fn clone_keeps_the_permit_after_the_response() {
    let (_server, gates) = gates();
    for gate in gates {
        let (service, mut guards) = passing_on();
        drop(layer(&gate).layer(service).oneshot(request("a")).await.unwrap());
        let guard = guards.recv().await.unwrap().unwrap();
        let second = guard.clone();
        assert!(guard.is_held() && !guard.is_empty());
        drop(guard);
        holds(&gate, 1, "a clone is left").await;
        drop(second);
        holds(&gate, 0, "all clones are gone").await;
    }
}

#[tokio::test]
async fn guard_lapses_only_with_its_permit() {
    let (_server, gates) = gates();
    for gate in gates {
        let (service, mut guards) = passing_on();
        drop(layer(&gate).layer(service).oneshot(request("a")).await.unwrap());
        for guard in [guards.recv().await.unwrap().unwrap(), RequestPermits::default()] {
            let mut lapsed = std::pin::pin!(guard.lapsed());
            let polled = poll_fn(|cx| Poll::Ready(lapsed.as_mut().poll(cx).is_pending())).await;
            assert!(polled && guard.is_held());
        }
        gate.limiter().shutdown().await;
    }
}

#[tokio::test]
async fn guard_of_nested_layers_covers_both() {
    let limiter = memory();
    let gate = |name| limiter.gate(name, Quota::in_flight(2));
    let (outer, inner, rate) =
        (gate("outer"), gate("inner"), limiter.gate("rate", Quota::token_bucket(9, Rate::per_second(9))));
    let (service, mut guards) = passing_on();
    let service = layer(&outer).layer(layer(&rate).layer(layer(&inner).layer(service)));
    let response = service.oneshot(request("a")).await.unwrap();
    let guard = guards.recv().await.unwrap().unwrap();
    assert_eq!((held(&outer).await, held(&inner).await), (1, 1));
    drop(response);
    holds(&outer, 1, "the guard is left").await;
    holds(&inner, 1, "the guard is left").await;
    drop(guard);
    holds(&outer, 0, "the guard is gone").await;
    holds(&inner, 0, "the guard is gone").await;
}

#[tokio::test]
async fn request_without_an_in_flight_limit_has_no_guard_and_extracts_an_empty_one() {
    let gate = memory().gate("api", Quota::token_bucket(9, Rate::per_second(9)));
    let (service, mut guards) = passing_on();
    layer(&gate).layer(service).oneshot(request("a")).await.unwrap();
    assert!(guards.recv().await.unwrap().is_none());
    let handler = async |guard: RequestPermits| if guard.is_empty() { "empty" } else { "held" };
    for (layer, expected) in
        [(layer(&gate), "empty"), (layer(&gate.limiter().gate("uploads", Quota::in_flight(1))), "held")]
    {
        let app = Router::new().route("/", get(handler)).layer(layer);
        let sent = request("a").map(axum::body::Body::from);
        let response = app.oneshot(sent).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        assert_eq!(body, expected);
    }
}

#[tokio::test]
async fn admitted_request_holds_its_permit_until_its_body_has_ended() {
    let (_server, gates) = gates();
    for gate in gates {
        let limit = RateLimitLayer::new(gate.clone(), by_key());
        let parts = request("a").into_parts().0;
        let admitted = limit.admit(&parts).await.unwrap();
        assert_eq!(held(&gate).await, 1);
        let response = admitted.respond(Response::new(Full::<Bytes>::from("hello"))).await;
        assert_eq!(held(&gate).await, 1, "the body is not read yet");
        drop(response);
        holds(&gate, 0, "the body is dropped").await;

        drop(limit.admit(&parts).await.unwrap());
        holds(&gate, 0, "dropped without a response").await;

        let admitted = limit.admit(&parts).await.unwrap();
        let guard = admitted.permits();
        drop(admitted.respond(Response::new(Full::<Bytes>::from("hello"))).await);
        holds(&gate, 1, "the handler keeps the guard").await;
        drop(guard);
        holds(&gate, 0, "the guard is gone").await;
    }
}

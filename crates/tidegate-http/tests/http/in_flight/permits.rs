//! A permit is held until the response body has ended, has failed or is dropped.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{Empty, Full};
use tidegate::{Event, Limiter, Observer, Quota};
use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{Open, SLOTS, data, gates, held, holds, layer};
use crate::http::fixture::{Tested, by_key, request};
use crate::support::fixture::PATIENCE;
use bytes::Bytes;
use tidegate_http::RateLimitLayer;

#[tokio::test]
async fn permit_is_held_until_the_body_has_ended() {
    let (_server, gates) = gates();
    for gate in gates {
        let mut open = Open::begin(layer(&gate)).await;
        assert_eq!(held(&gate).await, 1);
        open.send(data("one")).await.unwrap().unwrap();
        assert_eq!(held(&gate).await, 1, "the body is being sent");
        let response = open.end().await;
        holds(&gate, 0, "the body has ended").await;
        drop(response);
    }
}

#[tokio::test]
async fn trailers_and_errors_end_the_body() {
    let (_server, gates) = gates();
    for gate in gates {
        let mut open = Open::begin(layer(&gate)).await;
        open.send(Ok(Frame::trailers(HeaderMap::new()))).await.unwrap().unwrap();
        holds(&gate, 0, "after trailers").await;
        drop(open);

        let mut open = Open::begin(layer(&gate)).await;
        open.send(Err(std::io::Error::other("broken"))).await.unwrap().unwrap_err();
        holds(&gate, 0, "after an error").await;
        drop(open);
    }
}

#[tokio::test]
async fn body_dropped_half_way_releases_its_permit() {
    let (_server, gates) = gates();
    for gate in gates {
        let mut open = Open::begin(layer(&gate)).await;
        open.send(data("one")).await.unwrap().unwrap();
        drop(open);
        holds(&gate, 0, "dropped").await;
        drop(Open::begin(layer(&gate)).await);
        holds(&gate, 0, "dropped unread").await;
        let open = Open::begin(layer(&gate)).await;
        std::thread::spawn(move || drop(open)).join().unwrap();
        holds(&gate, 0, "dropped on a thread without a runtime").await;
    }
}

#[tokio::test]
async fn body_is_dropped_before_its_permit_is_released() {
    /// Records releases.
    #[derive(Clone, Default)]
    struct Events(Arc<Mutex<Vec<&'static str>>>);
    impl Observer for Events {
        fn on(&self, event: &Event<'_>) {
            if let Event::PermitsHeld { change, .. } = *event {
                self.0.lock().unwrap().push(if change > 0 { "acquired" } else { "released" });
            }
        }
    }
    let events = Events::default();
    let limiter = Limiter::builder().in_memory().deadline(PATIENCE).observer(events.clone()).build().unwrap();
    let gate = limiter.gate("uploads", Quota::in_flight(1));
    let at_drop = events.clone();
    let at_drop = Box::new(move || at_drop.0.lock().unwrap().push("dropped"));
    let open = Open::begin_with(layer(&gate), request("a"), StatusCode::OK, Some(at_drop)).await;
    drop(open);
    assert_eq!(*events.0.lock().unwrap(), ["acquired", "dropped", "released"]);
}

#[tokio::test]
async fn response_whose_body_is_not_read_releases_its_permit_at_once() {
    let (_server, gates) = gates();
    for gate in gates {
        for (method, status) in [
            (Method::HEAD, StatusCode::OK),
            (Method::GET, StatusCode::NO_CONTENT),
            (Method::GET, StatusCode::NOT_MODIFIED),
        ] {
            let mut sent = request("a");
            *sent.method_mut() = method.clone();
            let open = Open::begin_with(layer(&gate), sent, status, None).await;
            holds(&gate, 0, &format!("{method}, {status}")).await;
            drop(open);
        }
        let empty = layer(&gate).layer(service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }));
        let response = empty.oneshot(request("a")).await.unwrap();
        holds(&gate, 0, "an empty body").await;
        drop(response);
    }
}

#[tokio::test]
async fn handler_that_fails_or_panics_releases_its_permit() {
    let (_server, gates) = gates();
    for gate in gates {
        let failing = layer(&gate).layer(service_fn(async |request: Request<String>| {
            assert_ne!(request.uri().path(), "/panic", "as the test wants");
            Err::<Response<Full<Bytes>>, _>(std::io::Error::other("failed"))
        }));
        assert_eq!(failing.clone().oneshot(request("a")).await.err().unwrap().to_string(), "failed");
        holds(&gate, 0, "failed").await;
        let mut panicking = request("a");
        *panicking.uri_mut() = "/panic".parse().unwrap();
        assert!(tokio::spawn(failing.oneshot(panicking)).await.unwrap_err().is_panic());
        holds(&gate, 0, "panicked").await;
    }
}

#[tokio::test]
async fn request_dropped_in_its_handler_releases_its_permit() {
    let (_server, gates) = gates();
    for gate in gates {
        let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
        let service = layer(&gate).layer(service_fn(move |_: Request<String>| {
            entered.send(()).unwrap();
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
        }));
        let sent = tokio::spawn(service.oneshot(request("a")));
        inside.recv().await.unwrap();
        assert_eq!(held(&gate).await, 1, "the handler runs");
        sent.abort();
        assert!(sent.await.unwrap_err().is_cancelled());
        holds(&gate, 0, "abandoned").await;
    }
}

#[tokio::test]
async fn slots_are_free_again_for_the_next_requests() {
    let (_server, gates) = gates();
    for gate in gates {
        for _ in 0..3 {
            let mut all = Vec::new();
            for _ in 0..SLOTS {
                all.push(Open::begin(layer(&gate)).await);
            }
            let tested = Tested::new(RateLimitLayer::new(gate.clone(), by_key()));
            assert_eq!(tested.get("a").await.status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(tested.get("b").await.status, StatusCode::OK, "another key");
            assert_eq!(tested.calls(), 1);
            drop(all);
            holds(&gate, 0, "all have ended").await;
        }
    }
}

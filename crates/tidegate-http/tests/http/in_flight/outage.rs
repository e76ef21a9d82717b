//! In-flight limits while Redis is unavailable.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use tidegate::{Gate, OnFailure, Quota};
use tidegate_http::{OnError, RequestPermits};
use tidegate_testkit::{Fault, Proxy, Server};

use super::fixture::{Open, SLOTS, held, holds, layer};
use crate::http::fixture::{Tested, request};
use crate::support::fixture::{builder, builder_as_is, namespace, soon};

/// A gate whose process reaches Redis through a proxy, and the same gate of another process.
struct Fleet {
    _server: Arc<Server>,
    proxy: Proxy,
    gate: Gate,
    other: Gate,
}

fn fleet(policy: OnFailure) -> Fleet {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let namespace = namespace();
    let here = builder_as_is(&proxy.url()).namespace(&namespace).instances(1).breaker(false);
    let here = here.on_failure(policy).permit_ttl(Duration::from_secs(2)).build().unwrap();
    let other = builder(server.url()).namespace(&namespace).build().unwrap();
    let gate = |limiter: &tidegate::Limiter| limiter.gate("uploads", Quota::in_flight(SLOTS));
    Fleet { _server: server.clone(), proxy, gate: gate(&here), other: gate(&other) }
}

#[tokio::test]
async fn policy_decides_while_redis_is_unavailable() {
    for (policy, status) in [
        (OnFailure::Error, StatusCode::SERVICE_UNAVAILABLE),
        (OnFailure::Closed, StatusCode::TOO_MANY_REQUESTS),
        (OnFailure::Open, StatusCode::OK),
        (OnFailure::Local, StatusCode::OK),
    ] {
        let Fleet { _server, proxy, gate, .. } = fleet(policy);
        proxy.set(Fault::Refuse);
        let tested = Tested::new(layer(&gate));
        for _ in 0..3 {
            assert_eq!(tested.get("a").await.status, status, "{policy:?}");
        }
    }
}

#[tokio::test]
async fn share_of_this_process_is_a_limit_and_is_counted_after_the_outage() {
    let Fleet { _server, proxy, gate, other } = fleet(OnFailure::Local);
    proxy.set(Fault::Refuse);
    let mut open = Vec::new();
    for _ in 0..SLOTS {
        open.push(Open::begin(layer(&gate)).await);
    }
    let tested = Tested::new(layer(&gate));
    assert_eq!(tested.get("a").await.status, StatusCode::TOO_MANY_REQUESTS);
    proxy.set(Fault::None);
    holds(&other, SLOTS, "counted after the outage").await;
    drop(open);
    holds(&other, 0, "all have ended").await;
}

#[tokio::test]
async fn request_admitted_without_a_decision_holds_nothing() {
    let Fleet { _server, proxy, gate, .. } = fleet(OnFailure::Error);
    proxy.set(Fault::Refuse);
    let tested = Tested::with(layer(&gate).on_error(OnError::Admit), |request| {
        let permits = request.extensions().get::<RequestPermits>().is_some();
        std::future::ready(Response::new(permits.to_string()))
    });
    let reply = tested.get("a").await;
    assert_eq!((reply.status, &*reply.body), (StatusCode::OK, "false"));
    proxy.set(Fault::None);
    soon("a decision after the outage", async || tested.get("a").await.body == "true").await;
}

#[tokio::test]
async fn handler_is_notified_when_its_permit_lapses() {
    let Fleet { _server, proxy, gate, other } = fleet(OnFailure::Error);
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    let stopping = Tested::with(layer(&gate), move |request| {
        let permits: RequestPermits = request.extensions().get().cloned().unwrap();
        entered.send(()).unwrap();
        async move {
            permits.lapsed().await;
            Response::new(format!("held: {}", permits.is_held()))
        }
    });
    let sent = stopping.begin(request("a")).await;
    inside.recv().await.unwrap();
    assert_eq!(held(&other).await, 1);
    proxy.set(Fault::Refuse);
    soon("the handler stops", async || sent.is_finished()).await;
    assert_eq!(sent.await.unwrap().body, "held: false");
    proxy.set(Fault::None);
    holds(&other, 0, "the request has ended").await;
}

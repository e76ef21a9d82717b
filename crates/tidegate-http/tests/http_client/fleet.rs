//! Several instances that share a quota for outgoing requests.

use std::pin::pin;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::future::join_all;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::{OnFailure, Quota, Rate};
use tidegate_http::{OutgoingError, OutgoingLayer};
use tower::{Layer, ServiceBuilder, ServiceExt};

use super::third_party::ThirdParty;
use super::{AMPLE, Instance, instances, limiters};
use crate::support::fixture::{builder, closed_port};

#[tokio::test]
async fn instances_together_keep_one_quota() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    let quota = Quota::token_bucket(5, Rate::per_second(20));
    let fleet: [Instance; 3] = instances(&server, quota, |layer| layer);
    let start = Instant::now();
    let requests = (0..45).map(|i| fleet[i % 3].get(&third_party.url));
    for response in join_all(requests).await {
        assert_eq!(response.unwrap().status(), 200);
    }
    // The first 5 requests are sent at once, then one every 50 ms.
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    let received = third_party.received();
    assert_eq!(received.len(), 45);
    // The n-th request arrives at the earliest (n - 5) / 20 s after the start.
    for (index, instant) in received.iter().enumerate().skip(5) {
        let earliest = Duration::from_millis(50) * u32::try_from(index + 1 - 5).unwrap();
        assert!(*instant - start >= earliest, "{index} after {:?}", *instant - start);
    }
}

#[tokio::test]
async fn request_that_would_wait_too_long_fails_without_being_sent() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    let quota = Quota::fixed_window(1, Duration::from_secs(3_600));
    let [one]: [Instance; 1] = instances(&server, quota, |layer| layer.max_wait(Duration::from_secs(60)));
    assert_eq!(one.get(&third_party.url).await.unwrap().status(), 200);
    let start = Instant::now();
    let error = one.get(&third_party.url).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(30));
    let OutgoingError::Limited(decision) = error else { panic!("{error}") };
    assert!(decision.retry_after() > Duration::from_secs(3_000));
    assert_eq!(third_party.received().len(), 1);
}

#[tokio::test]
async fn hosts_have_separate_limits_unless_a_key_is_set() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    let [limiter] = limiters::<1>(&server);
    let gate = limiter.gate("hosts", Quota::fixed_window(1, Duration::from_secs(3_600)));
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let client = OutgoingLayer::new(gate.clone()).max_wait(Duration::ZERO).layer(client);
    let get = |host: &str| {
        let url = third_party.url.replace("127.0.0.1", host);
        client.clone().oneshot(Request::get(url).body(Body::empty()).unwrap())
    };
    assert!(get("127.0.0.1").await.is_ok());
    assert!(matches!(get("127.0.0.1").await, Err(OutgoingError::Limited(_))));
    assert!(get("LocalHost").await.is_ok());
    assert!(matches!(get("localhost").await, Err(OutgoingError::Limited(_))));
    assert_eq!(gate.peek("localhost").await.unwrap().remaining(), 0);

    let no_host = client.clone().oneshot(Request::get("/path").body(Body::empty()).unwrap()).await;
    assert!(matches!(no_host, Err(OutgoingError::NoKey)));
}

#[tokio::test]
async fn errors_distinguish_the_client_from_the_limiter() {
    let server = tidegate_testkit::shared();
    let [one]: [Instance; 1] = instances(&server, AMPLE, |layer| layer);
    let unreachable_url = format!("http://127.0.0.1:{}/", closed_port());
    let error = one.get(&unreachable_url).await.unwrap_err();
    assert!(matches!(&error, OutgoingError::Client(error) if error.is_connect()), "{error}");

    let third_party = ThirdParty::start().await;
    let unavailable =
        builder(&format!("redis://127.0.0.1:{}", closed_port())).on_failure(OnFailure::Error).build();
    let one = Instance::new(unavailable.unwrap().gate("outgoing", AMPLE), |layer| layer);
    let error = one.get(&third_party.url).await.unwrap_err();
    assert!(matches!(&error, OutgoingError::Failed(error) if error.is_unavailable()), "{error}");
    assert!(third_party.received().is_empty());
}

#[tokio::test]
async fn inner_client_is_polled_ready_only_after_the_wait() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    let [limiter] = limiters::<1>(&server);
    let gate = limiter.gate("turns", Quota::fixed_window(1, Duration::from_secs(3_600)));
    // The client has one concurrency slot. A request that waits for the limiter must not hold it.
    let client = ServiceBuilder::new()
        .concurrency_limit(1)
        .service(Client::builder(TokioExecutor::new()).build_http::<Body>());
    let waiting = OutgoingLayer::new(gate.clone()).max_wait(Duration::from_secs(7_200)).layer(client.clone());
    let free = OutgoingLayer::new(limiter.gate("free", AMPLE)).layer(client);
    let get = || Request::get(&*third_party.url).body(Body::empty()).unwrap();

    assert!(gate.check("127.0.0.1").await.unwrap().is_allowed());
    let mut waits = pin!(waiting.oneshot(get()));
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut waits).await.is_err());
    assert_eq!(free.oneshot(get()).await.unwrap().status(), 200);
    assert!(tokio::time::timeout(Duration::ZERO, waits).await.is_err());
}

#[tokio::test]
async fn reqwest_works_as_the_inner_client() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    third_party.respond_with(429, &[("retry-after", "60")]);
    let [limiter] = limiters::<1>(&server);
    let gate = limiter.gate("reqwest", AMPLE);
    let client = ServiceBuilder::new()
        .layer(OutgoingLayer::new(gate.clone()))
        .map_response(Response::<reqwest::Body>::from)
        .map_request(|request: Request<String>| reqwest::Request::try_from(request).unwrap())
        .service(reqwest::Client::builder().no_proxy().build().unwrap());
    let request = Request::get(&*third_party.url).body(String::new()).unwrap();
    assert_eq!(client.oneshot(request).await.unwrap().status(), 429);
    assert!(!gate.peek("127.0.0.1").await.unwrap().is_allowed());
}

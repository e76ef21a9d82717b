//! gRPC calls hold their permits until their trailers, or until the client leaves.

use tidegate::{Gate, Quota};
use tidegate_http::{Key, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::fixture::{held, holds};
use crate::support::fixture::limiter;

/// Starts tonic's health service behind the layer, and connects to it.
async fn connect(gate: &Gate) -> HealthClient<Channel> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let layer = RateLimitLayer::new(gate.clone(), Key::constant("a"));
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    HealthClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap())
}

fn health() -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest { service: String::new() })
}

#[tokio::test]
async fn stream_holds_its_permit_until_the_client_leaves() {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("streams", Quota::in_flight(3));
    let mut client = connect(&gate).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = client.watch(health()).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        streams.push(stream);
    }
    assert_eq!(held(&gate).await, 3);
    let denied = client.watch(health()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert!(denied.message().contains("of 3 concurrent requests is reached"), "{denied}");
    assert_eq!(denied.get_details_retry_info().unwrap().retry_delay.unwrap().as_secs(), 1);
    streams.pop();
    holds(&gate, 2, "one client has left").await;
    let mut stream = client.watch(health()).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    drop((streams, stream));
    holds(&gate, 0, "all have left").await;
}

#[tokio::test]
async fn call_with_trailers_releases_its_permit() {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("calls", Quota::in_flight(1));
    let mut client = connect(&gate).await;
    for _ in 0..20 {
        client.check(health()).await.unwrap();
        holds(&gate, 0, "the trailers are sent").await;
    }
}

//! The maximum of connections of both ports.

use std::time::Duration;

use tidegate_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::fixture::{Running, descriptor, in_memory, request};
use crate::support::fixture::PATIENCE;

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
";
/// Long enough for an answer on a loaded machine, if there were one.
const SILENCE: Duration = Duration::from_millis(300);

/// Sends a request without reading the answer.
async fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
}

async fn answer(stream: &mut TcpStream) -> bool {
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).await.is_ok_and(|_| reply == *b"HTTP/1.1 200")
}

#[tokio::test]
async fn connections_above_the_maximum_wait_for_another_to_close() {
    let server =
        Running::of(Server::new(in_memory(RULES)).max_connections(2).drain_notice(Duration::ZERO)).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.http_addr).await.unwrap();
        ask(&mut stream).await;
        assert!(timeout(PATIENCE, answer(&mut stream)).await.unwrap());
        open.push(stream);
    }
    let mut third = TcpStream::connect(server.http_addr).await.unwrap();
    ask(&mut third).await;
    // The others are closed by the server after 5 s of silence, so this ends earlier.
    assert!(timeout(SILENCE, answer(&mut third)).await.is_err(), "it has no connection yet");
    open.pop();
    assert!(timeout(PATIENCE, answer(&mut third)).await.unwrap());
    drop((open, third));
    assert!(server.stop().await);
}

#[tokio::test]
async fn grpc_connections_above_the_maximum_wait_for_another_to_close() {
    let server =
        Running::of(Server::new(in_memory(RULES)).max_connections(1).drain_notice(Duration::ZERO)).await;
    let mut first = server.client().await;
    first.should_rate_limit(request([descriptor(&[("user", "ada")])])).await.unwrap();
    let mut second = server.client().await;
    let waits =
        async move { second.should_rate_limit(request([descriptor(&[("user", "ada")])])).await.is_ok() };
    let mut waits = std::pin::pin!(waits);
    assert!(timeout(SILENCE, &mut waits).await.is_err(), "it has no connection yet");
    drop(first);
    assert!(timeout(PATIENCE, waits).await.unwrap());
    assert!(server.stop().await);
}

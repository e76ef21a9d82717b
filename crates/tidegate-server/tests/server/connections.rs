//! The maximum of connections of both ports.

use std::time::Duration;

use tidegate_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::fixture::{Running, descriptor, in_memory, request};
use crate::support::fixture::{PATIENCE, soon};

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
";
/// Long enough for an answer on a loaded machine, if there were one.
const SILENCE: Duration = Duration::from_millis(300);

/// Sends a request, and returns the head of the response, whose body is short; empty if the connection was closed.
async fn ask(stream: &mut TcpStream, path: &str) -> String {
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    let head = if path == "/livez" { head.replace("POST", "GET") } else { head };
    let mut response = vec![0; 4_096];
    match (stream.write_all(head.as_bytes()).await, stream.read(&mut response).await) {
        (Ok(()), Ok(bytes)) => String::from_utf8_lossy(&response[..bytes]).into_owned(),
        _ => String::new(),
    }
}

#[tokio::test]
async fn only_probes_are_answered_above_the_maximum() {
    let server =
        Running::of(Server::new(in_memory(RULES)).max_connections(2).drain_notice(Duration::ZERO)).await;
    let address = server.http_addr;
    let mut in_use = JoinSet::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(timeout(PATIENCE, ask(&mut stream, "/livez")).await.unwrap().starts_with("HTTP/1.1 200"));
        // The server closes a connection after 5 s of silence.
        in_use.spawn(async move {
            while !ask(&mut stream, "/livez").await.is_empty() {
                sleep(Duration::from_millis(100)).await;
            }
        });
    }
    for (path, status) in [("/livez", "200"), ("/json", "503"), ("/v1/check", "503"), ("/livez", "200")] {
        let mut further = TcpStream::connect(address).await.unwrap();
        let response = timeout(PATIENCE, ask(&mut further, path)).await.unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {response}");
        assert!(response.contains("connection: close"), "{path}: {response}");
        assert_eq!(response.contains("too-many-connections"), status == "503", "{path}: {response}");
    }
    assert!(in_use.try_join_next().is_none(), "both are open");
    in_use.shutdown().await;
    soon("a new connection has a place", async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        ask(&mut stream, "/json").await.starts_with("HTTP/1.1 400 ")
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn clients_that_hold_connections_do_not_keep_probes_out() {
    let server =
        Running::of(Server::new(in_memory(RULES)).max_connections(1).drain_notice(Duration::ZERO)).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(server.http_addr).await.unwrap());
    }
    let mut probe = TcpStream::connect(server.http_addr).await.unwrap();
    assert!(timeout(PATIENCE, ask(&mut probe, "/livez")).await.unwrap().starts_with("HTTP/1.1 200"));
    drop(silent);
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

//! Requests that do not end. All of them share one memory: beyond it they fail, and complete requests are decided.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use tidegate_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::Code;

use super::fixture::{Running, in_memory};
use super::raw::send_body;
use crate::support::fixture::soon;

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000000 }
";
const COMPLETE: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
const MAX_MESSAGE: usize = 16 << 10;

/// Sends a part of a body in one piece with its head, and returns the response.
async fn post(address: SocketAddr, path: &str, length: usize, part: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n"
    );
    // An error means that the server has answered without reading all.
    let _ = stream.write_all(&[head.as_bytes(), part].concat()).await;
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8(response).unwrap()
}

/// Sends all of a request but its last byte.
async fn unfinished(address: SocketAddr, path: &str) -> String {
    post(address, path, MAX_MESSAGE, &[b' '; MAX_MESSAGE - 1]).await
}

/// Sends all of a message but its last byte.
async fn unfinished_message(address: SocketAddr) -> Code {
    let message = [&[0, 0, 0, 0x40, 0][..], &[0; MAX_MESSAGE - 1]].concat();
    let sent = tokio_stream::once(Ok(Frame::data(Bytes::from(message))));
    send_body(address, StreamBody::new(Box::pin(sent.chain(tokio_stream::pending())))).await
}

#[tokio::test]
async fn unfinished_requests_of_both_ports_share_one_memory() {
    let server = Server::new(in_memory(RULES)).max_message_bytes(MAX_MESSAGE);
    let server = server.max_unfinished_bytes(3 * MAX_MESSAGE).drain_notice(Duration::ZERO);
    let server = Running::of(server).await;
    let (http, grpc) = (server.http_addr, server.grpc_addr);
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(async move {
            loop {
                unfinished(http, "/json").await;
            }
        });
    }
    soon("HTTP gets 503", async || {
        let response = unfinished(http, "/json").await;
        response.starts_with("HTTP/1.1 503 ") && response.contains("\r\nretry-after: 1\r\n")
    })
    .await;
    soon("the API names the problem", async || {
        let response = unfinished(http, "/v1/check").await;
        response.starts_with("HTTP/1.1 503 ") && response.contains("urn:tidegate:problem:too-many-unfinished")
    })
    .await;
    soon("gRPC gets RESOURCE_EXHAUSTED", async || unfinished_message(grpc).await == Code::ResourceExhausted)
        .await;
    for _ in 0..20 {
        let response = post(http, "/json", COMPLETE.len(), COMPLETE.as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }

    clients.shutdown().await;
    let padded = format!("{COMPLETE}{}", " ".repeat(MAX_MESSAGE - COMPLETE.len()));
    soon("the memory is free again", async || {
        let response = post(http, "/json", padded.len(), padded.as_bytes()).await;
        response.starts_with("HTTP/1.1 200 ")
    })
    .await;
    assert!(server.stop().await);
}

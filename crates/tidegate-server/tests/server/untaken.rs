//! Clients over HTTP/2 that do not take the responses to their requests, or say nothing at all. They hold neither memory nor
//! the end of the server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tidegate_server::Server;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use super::fixture::{Running, descriptor, in_memory, request};
use super::raw::{METHOD, PREFACE};
use crate::support::fixture::HANGS;

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000000 }
";
const HOUR: Duration = Duration::from_secs(3_600);

fn server() -> Server {
    Server::new(in_memory(RULES)).drain_notice(Duration::ZERO).drain(HOUR)
}

/// A client whose window has a few bytes for each response. It reads no body.
struct Untaken {
    connection: JoinHandle<()>,
    _responses: Vec<Incoming>,
    _sender: http2::SendRequest<Full<Bytes>>,
}

impl Untaken {
    /// Sends requests, and waits for the heads of the responses.
    async fn send(address: SocketAddr, window: u32, count: usize) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.initial_stream_window_size(window);
        let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async { drop(connection.await) });
        let message = request([descriptor(&[("user", "ada")])]).encode_to_vec();
        let prefix = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = Bytes::from([&[0], &prefix[..], &message].concat());
        let mut responses = Vec::new();
        for _ in 0..count {
            let request = http::Request::post(format!("http://{address}{METHOD}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(body.clone()))
                .unwrap();
            // An error means that the server has closed the connection. One after the other: requests that arrive at
            // once take memory themselves, and are rejected without a body.
            if sender.ready().await.is_err() {
                break;
            }
            match sender.send_request(request).await {
                Ok(response) => responses.push(response.into_body()),
                Err(_) => break,
            }
        }
        Self { connection, _responses: responses, _sender: sender }
    }

    /// Waits until the server has closed the connection.
    async fn until_closed(self) {
        timeout(HANGS, self.connection).await.expect("it is closed").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_takes_no_response_is_closed_and_holds_no_other() {
    let server = Running::of(server()).await;
    let start = Instant::now();
    let mut untaken = Vec::new();
    for window in [0, 1] {
        untaken.push(Untaken::send(server.grpc_addr, window, 100).await);
    }
    let mut client = server.client().await;
    client.should_rate_limit(request([descriptor(&[("user", "bob")])])).await.unwrap();
    for untaken in untaken {
        untaken.until_closed().await;
    }
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(5), "{waited:?}");
    client.should_rate_limit(request([descriptor(&[("user", "bob")])])).await.unwrap();
    assert!(timeout(HANGS, server.stop()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_clients_do_not_take_count_as_unfinished_requests() {
    let server = Running::of(server().max_message_bytes(1 << 10).max_unfinished_bytes(256 << 10)).await;
    let start = Instant::now();
    let few = Untaken::send(server.grpc_addr, 0, 8).await;
    let many = Untaken::send(server.grpc_addr, 0, 64).await;
    many.until_closed().await;
    assert!(!few.connection.is_finished(), "there is no room for the later ones");
    few.until_closed().await;
    assert!(start.elapsed() >= Duration::from_secs(5), "there is room for these");
    assert!(timeout(HANGS, server.stop()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_take_nothing_or_say_nothing_do_not_hold_the_end() {
    let server = Running::of(server()).await;
    let _no_room = Untaken::send(server.grpc_addr, 0, 100).await;
    let _little_room = Untaken::send(server.grpc_addr, 1, 100).await;
    let _nothing = TcpStream::connect(server.grpc_addr).await.unwrap();
    // It does not answer the ping that ends a connection.
    let mut silent = TcpStream::connect(server.grpc_addr).await.unwrap();
    silent.write_all(PREFACE).await.unwrap();
    let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
    let mut reflection = ServerReflectionClient::new(endpoint.connect().await.unwrap());
    let list = MessageRequest::ListServices(String::new());
    let ask = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let asks = tokio_stream::StreamExt::chain(tokio_stream::once(ask), tokio_stream::pending());
    let mut answers = reflection.server_reflection_info(asks).await.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();

    let stopped = timeout(HANGS, server.stop()).await;
    assert!(stopped.expect("it ends in time"), "no request was cut off");
}

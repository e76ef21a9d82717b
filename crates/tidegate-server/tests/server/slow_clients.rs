//! Clients that send or read a byte a second, or nothing. They hold no other client, and are closed in time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tonic::Code;

use super::fixture::{Running, descriptor, in_memory, request};
use super::raw::{PREFACE, connect_narrow, send_body};
use crate::support::fixture::HANGS;

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000000 }
";
const SECOND: Duration = Duration::from_secs(1);
/// A `PING` frame, which the server has to answer.
const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Sends a byte a second until the server closes the connection, and returns what it replied.
async fn drip(address: SocketAddr, at_once: &[u8], slowly: &[u8]) -> Vec<u8> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    write.write_all(at_once).await.unwrap();
    let slowly = slowly.to_vec();
    let sending = tokio::spawn(async move {
        for byte in slowly {
            if write.write_all(&[byte]).await.is_err() {
                break;
            }
            sleep(SECOND).await;
        }
        // Only the server may end the connection.
        std::future::pending::<()>().await;
    });
    let mut reply = Vec::new();
    // An error is a reset: the server has not read all.
    let _ = read.read_to_end(&mut reply).await;
    sending.abort();
    reply
}

/// Sends requests and reads no response, until the server closes the connection.
async fn read_nothing(address: SocketAddr, at_once: &[u8], again: &[u8]) {
    let mut stream = connect_narrow(address).await;
    stream.write_all(at_once).await.unwrap();
    let many = again.repeat(1_000);
    while stream.write_all(&many).await.is_ok() {}
}

/// Sends the body of a gRPC request a byte a second, and returns the status of the response.
async fn drip_grpc_body(address: SocketAddr) -> Code {
    let bytes = tokio_stream::iter(std::iter::repeat(0_u8)).then(async |byte| {
        sleep(SECOND).await;
        Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![byte])))
    });
    send_body(address, StreamBody::new(Box::pin(bytes))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_are_closed_in_time_and_hold_no_other_client() {
    let server = Running::start(in_memory(RULES)).await;
    let (grpc, http) = (server.grpc_addr, server.http_addr);
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    let mut client = server.client().await;
    let (over, count, livez) = (is_over.clone(), answered.clone(), server.url("/livez"));
    let others = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        while !over.load(Ordering::Relaxed) {
            let asked = Instant::now();
            client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await.unwrap();
            assert_eq!(reqwest::get(&livez).await.unwrap().status(), 200);
            longest = longest.max(asked.elapsed());
            count.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(5)).await;
        }
        longest
    });

    let head = b"POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n";
    let livez = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    clients.spawn(async move { ("HTTP, head", drip(http, b"", head).await) });
    clients.spawn(async move { ("HTTP, nothing", drip(http, b"", b"").await) });
    clients.spawn(async move {
        let reply = drip(http, head, &[b' '; 999]).await;
        let text = String::from_utf8(reply.clone()).unwrap();
        assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("did not end within"), "{text}");
        ("HTTP, body", reply)
    });
    clients.spawn(async move {
        read_nothing(http, b"", livez).await;
        ("HTTP, reads nothing", Vec::new())
    });
    clients.spawn(async move { ("gRPC, preface", drip(grpc, b"", PREFACE).await) });
    clients.spawn(async move { ("gRPC, nothing", drip(grpc, b"", b"").await) });
    clients.spawn(async move {
        read_nothing(grpc, PREFACE, &PING).await;
        ("gRPC, reads nothing", Vec::new())
    });
    clients.spawn(async move {
        let status = drip_grpc_body(grpc).await;
        assert_eq!(status, Code::DeadlineExceeded);
        ("gRPC, body", Vec::new())
    });

    let start = Instant::now();
    let mut closed = Vec::new();
    while let Ok(Some(client)) = timeout(HANGS.saturating_sub(start.elapsed()), clients.join_next()).await {
        closed.push(client.unwrap().0);
    }
    assert!(clients.is_empty(), "only these were closed in time: {closed:?}");
    is_over.store(true, Ordering::Relaxed);
    let longest = others.await.unwrap();
    assert!(answered.load(Ordering::Relaxed) > 20, "{answered:?}");
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    assert!(server.stop().await);
}

//! A limit of bytes, as `GateRule` documents it.

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use axum::{Extension, Router};
use http::header::CONTENT_LENGTH;
use tidegate::{Gate, Limiter, Quota};
use tidegate_http::{Charge, GateRule, Key, RateLimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::fixture::HOUR;

const MAX_BODY_BYTES: usize = 40;

#[derive(Clone)]
struct BytesRead(u64);

fn app(gate: Gate) -> Router {
    let rule = GateRule::new(gate, Key::constant("all"))
        .cost(|parts| {
            let length = parts.headers.get(CONTENT_LENGTH);
            length.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(MAX_BODY_BYTES as u64)
        })
        .charge(Charge::units(|response| response.extensions.get().map(|&BytesRead(bytes)| bytes)));
    let upload = |body: Bytes| async move { Extension(BytesRead(body.len() as u64)) };
    Router::new()
        .route("/", post(upload))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(RateLimitLayer::of([rule]))
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    Length,
    Chunked,
    /// Also sends a length that is too small.
    ChunkedBesideLength,
}

/// Sends a body of `bytes` bytes. Returns the status.
async fn upload(address: std::net::SocketAddr, framing: Framing, bytes: usize) -> u16 {
    let body = "a".repeat(bytes);
    let chunks = if bytes > 0 { format!("{bytes:x}\r\n{body}\r\n0\r\n\r\n") } else { "0\r\n\r\n".to_owned() };
    let rest = match framing {
        Framing::Length => format!("content-length: {bytes}\r\n\r\n{body}"),
        Framing::Chunked => format!("transfer-encoding: chunked\r\n\r\n{chunks}"),
        Framing::ChunkedBesideLength => {
            format!("content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n{chunks}")
        }
    };
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
    stream.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn upload_is_charged_for_the_bytes_read_with_and_without_a_length() {
    let gate = Limiter::in_memory().gate("upload", Quota::fixed_window(100, HOUR));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app(gate.clone());
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    for (framing, bytes, status, left) in [
        (Framing::Length, 0, 200, 100),
        (Framing::Length, 10, 200, 90),
        (Framing::Chunked, 10, 200, 80),
        (Framing::ChunkedBesideLength, 10, 200, 70),
        (Framing::Chunked, 0, 200, 70),
        (Framing::Chunked, MAX_BODY_BYTES, 200, 30),
        // The largest body would not fit, so a chunked one is not read.
        (Framing::Chunked, 1, 429, 30),
        (Framing::Length, 31, 429, 30),
        (Framing::Length, 30, 200, 0),
    ] {
        assert_eq!(upload(address, framing, bytes).await, status, "{framing:?}, {bytes} bytes");
        assert_eq!(gate.peek("all").await.unwrap().remaining(), left, "{framing:?}, {bytes} bytes");
    }
    gate.reset("all").await.unwrap();
    assert_eq!(upload(address, Framing::Chunked, MAX_BODY_BYTES + 1).await, 413);
    assert_eq!(
        gate.peek("all").await.unwrap().remaining(),
        60,
        "a body that the handler rejects stays charged"
    );
    server.abort();
}

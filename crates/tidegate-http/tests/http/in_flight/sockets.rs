//! Requests over real sockets that end in all ways: no permit is left.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use axum::routing::get;
use futures_util::stream::{self, StreamExt};
use http::StatusCode;
use tidegate::{Gate, Limiter, Quota, Rate};
use tidegate_http::RateLimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::fixture::{held, holds};
use crate::http::fixture::by_key;
use crate::support::fixture::{limiter, soon};

/// How a request ends.
const WAYS: [&str; 8] = ["read", "leave", "hang", "break", "fail", "panic", "head", "empty"];

/// Counts the requests inside the service: from the handler's start to the drop of the response body.
#[derive(Clone, Default)]
struct Inside {
    now: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

struct Entered(Arc<AtomicU64>);

impl Inside {
    fn enter(&self) -> Entered {
        let inside = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        Entered(self.now.clone())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns a body of some pieces, and `end` after them. It is inside until it is dropped.
fn body(entered: Entered, pieces: usize, end: Option<std::io::Error>) -> Body {
    let pieces = stream::iter((0..pieces).map(|_| Ok(Bytes::from_static(&[b'x'; 1_000]))));
    let pieces = pieces.chain(stream::iter(end.map(Err))).then(move |piece| {
        let _inside = &entered;
        async move {
            tokio::task::yield_now().await;
            piece
        }
    });
    Body::from_stream(pieces)
}

async fn respond(inside: Inside, way: &'static str) -> Response {
    let entered = inside.enter();
    match way {
        "hang" => std::future::pending().await,
        "panic" => panic!("as the test wants"),
        "fail" => {
            let mut response = Response::new(body(entered, 1, None));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
        "break" => Response::new(body(entered, 2, Some(std::io::Error::other("broken")))),
        // More than the sockets buffer: the client leaves before the end.
        "leave" => Response::new(body(entered, 20_000, None)),
        "empty" => Response::new(Body::empty()),
        _ => Response::new(body(entered, 3, None)),
    }
}

async fn serve(layer: RateLimitLayer) -> (SocketAddr, Inside) {
    let inside = Inside::default();
    let app = WAYS.iter().fold(Router::new(), |app, way| {
        let inside = inside.clone();
        app.route(&format!("/{way}"), get(move || respond(inside.clone(), way)))
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.layer(layer);
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, inside)
}

/// Sends a request and returns without reading the response.
async fn send(address: SocketAddr, way: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    let method = if way == "head" { "HEAD" } else { "GET" };
    let head = "host: x\r\nconnection: close\r\nx-api-key: a";
    client.write_all(format!("{method} /{way} HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()).await.unwrap();
    client
}

/// Sends a request and lets it end in its way. Returns whether it was admitted, if the client knows.
async fn end(address: SocketAddr, way: &str) -> Option<bool> {
    let mut client = send(address, way).await;
    let mut response = Vec::new();
    match way {
        // Leaves while the handler runs, or before.
        "hang" => {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..30))).await;
            return None;
        }
        "leave" => {
            let mut part = [0; 2_000];
            let read = client.read(&mut part).await.unwrap_or(0);
            response.extend_from_slice(&part[..read]);
        }
        _ => drop(client.read_to_end(&mut response).await),
    }
    let status = response.split(|byte| *byte == b' ').nth(1)?;
    Some(status != b"429")
}

/// Runs many requests, of which many are denied, and verifies the permits.
async fn run(requests: usize, at_once: usize) {
    const SLOTS: u64 = 4;
    let server = tidegate_testkit::shared();
    let limiter: Limiter = limiter(&server);
    let slots = limiter.gate("slots", Quota::in_flight(SLOTS));
    let rate = limiter.gate("rate", Quota::token_bucket(1_000_000, Rate::per_second(1_000)));
    let layer = RateLimitLayer::new(slots.clone(), by_key()).and(rate.clone(), by_key());
    let (address, inside) = serve(layer.wait(Duration::from_millis(20), 5)).await;
    let (mut clients, mut admitted, mut denied) = (JoinSet::new(), 0, 0);
    for at in 0..requests {
        if clients.len() >= at_once {
            match clients.join_next().await.unwrap().unwrap() {
                Some(true) => admitted += 1,
                Some(false) => denied += 1,
                None => {}
            }
        }
        clients.spawn(end(address, WAYS[at % WAYS.len()]));
    }
    clients.join_all().await;
    soon("no request is inside", async || inside.now.load(Ordering::SeqCst) == 0).await;
    holds(&slots, 0, "all have ended").await;
    let most = inside.most.load(Ordering::SeqCst);
    eprintln!("{requests} requests: {admitted} admitted, {denied} denied, at most {most} inside");
    assert!(most <= SLOTS, "{most} requests were inside at once");
    assert!(admitted > 0 && denied > 0, "{admitted} admitted, {denied} denied");
}

#[tokio::test]
async fn thousand_requests_that_end_in_all_ways_leave_no_permit() {
    run(1_000, 100).await;
}

#[tokio::test]
#[ignore = "takes a minute: scripts/test full"]
async fn long_form_ten_thousand_requests_leave_no_permit() {
    run(10_000, 200).await;
}

async fn gate_of(slots: u64) -> (std::sync::Arc<tidegate_testkit::Server>, Gate, SocketAddr, Inside) {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("slots", Quota::in_flight(slots));
    let (address, inside) = serve(RateLimitLayer::new(gate.clone(), by_key())).await;
    (server, gate, address, inside)
}

#[tokio::test]
async fn client_that_leaves_before_the_response_frees_its_slot() {
    let (_server, gate, address, inside) = gate_of(50).await;
    for _ in 0..3 {
        let mut clients = Vec::new();
        for _ in 0..50 {
            clients.push(send(address, "hang").await);
        }
        soon("all handlers run", async || inside.now.load(Ordering::SeqCst) == 50).await;
        assert_eq!(held(&gate).await, 50);
        assert_eq!(end(address, "read").await, Some(false));
        drop(clients);
        holds(&gate, 0, "all have left").await;
    }
}

#[tokio::test]
async fn each_end_frees_its_slot() {
    let (_server, gate, address, _inside) = gate_of(1).await;
    for way in WAYS {
        let is_admitted = end(address, way).await;
        let has_status = !matches!(way, "hang" | "panic");
        assert_eq!(is_admitted, has_status.then_some(true), "{way}");
        holds(&gate, 0, way).await;
    }
}

//! Upgraded connections keep their permit until they are closed.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::header::{CONNECTION, UPGRADE};
use http::{Method, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tidegate::{Adaptive, Gate, ManualClock, Quota};
use tidegate_http::RequestPermits;
use tidegate_testkit::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, tungstenite};
use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{Codes, held, holds, layer, memory_with};
use crate::http::fixture::request;
use crate::support::fixture::{builder, soon};

/// Switches the protocol. The new one returns each byte. Keeps `permits` until the connection is closed.
fn upgrade(request: Request, permits: Option<RequestPermits>) -> Response {
    echo_on_connection(request, permits);
    (StatusCode::SWITCHING_PROTOCOLS, [(CONNECTION, "upgrade"), (UPGRADE, "echo")]).into_response()
}

/// Returns each byte of the connection after the response. Keeps `permits` until it is closed.
fn echo_on_connection(request: Request, permits: Option<RequestPermits>) {
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let connection = TokioIo::new(upgraded.await.unwrap());
        let (mut read, mut write) = tokio::io::split(connection);
        let _ = tokio::io::copy(&mut read, &mut write).await;
        drop(permits);
    });
}

/// Starts a service. Its handler at `/keep` keeps the permits of an upgraded connection, that at `/forget` does not. At
/// `/socket` is a websocket. CONNECT, which has no path, opens a tunnel.
async fn serve(gate: &Gate) -> SocketAddr {
    let keep = async |permits: RequestPermits, request: Request| upgrade(request, Some(permits));
    let forget = async |request: Request| upgrade(request, None);
    let tunnel = async |permits: RequestPermits, request: Request| {
        assert_eq!(request.method(), Method::CONNECT);
        echo_on_connection(request, Some(permits));
    };
    let app = Router::new().route("/keep", get(keep)).route("/forget", get(forget));
    let app = app.route("/socket", get(socket)).fallback(tunnel).layer(layer(gate));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A websocket of axum that returns each message.
async fn socket(permits: RequestPermits, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket| {
        while let Some(Ok(message)) = socket.recv().await {
            if socket.send(message).await.is_err() {
                break;
            }
        }
        drop(permits);
    })
}

/// Opens a websocket.
async fn open_socket(address: SocketAddr) -> Result<WebSocketStream<TcpStream>, tungstenite::Error> {
    let mut request = "ws://x/socket".into_client_request()?;
    request.headers_mut().insert("x-api-key", "a".parse()?);
    let stream = TcpStream::connect(address).await?;
    Ok(tokio_tungstenite::client_async(request, stream).await?.0)
}

/// Upgrades a connection. Returns it after the response with this status.
async fn connect(address: SocketAddr, path: &str, status: &str) -> TcpStream {
    let head = "x-api-key: a\r\nconnection: upgrade\r\nupgrade: echo";
    send_head(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n{head}"), status).await
}

/// Opens a tunnel. Returns its connection after the response with this status.
async fn open_tunnel(address: SocketAddr, status: &str) -> TcpStream {
    send_head(address, "CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\nx-api-key: a", status).await
}

/// Sends the head of a request. Returns the connection after the response with this status.
async fn send_head(address: SocketAddr, head: &str, status: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(format!("{head}\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(client.read_u8().await.unwrap());
    }
    let response = String::from_utf8(response).unwrap();
    assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
    client
}

async fn echoes(client: &mut TcpStream) {
    client.write_all(b"hello").await.unwrap();
    let mut reply = [0; 5];
    client.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"hello");
}

/// Returns a gate of two slots. The server lives as long as the first value.
fn observed() -> (Arc<Server>, Gate, Codes) {
    let (server, codes) = (tidegate_testkit::shared(), Codes::default());
    let limiter = builder(server.url()).observer(codes.clone()).build().unwrap();
    (server, limiter.gate("sockets", Quota::in_flight(2)), codes)
}

#[tokio::test]
async fn upgraded_connection_holds_its_permit_until_it_is_closed() {
    let (_server, gate, codes) = observed();
    let address = serve(&gate).await;
    let (mut first, mut second) =
        (connect(address, "/keep", "101").await, connect(address, "/keep", "101").await);
    echoes(&mut first).await;
    echoes(&mut second).await;
    assert_eq!(held(&gate).await, 2);
    drop(connect(address, "/keep", "429").await);
    drop(first);
    holds(&gate, 1, "one is closed").await;
    echoes(&mut second).await;
    drop(connect(address, "/keep", "101").await);
    drop(second);
    holds(&gate, 0, "all are closed").await;
    assert_eq!(codes.take(), [""; 0]);
}

#[tokio::test]
async fn websocket_holds_its_permit_until_it_is_closed() {
    let (_server, gate, codes) = observed();
    let address = serve(&gate).await;
    let (mut first, mut second) = (open_socket(address).await.unwrap(), open_socket(address).await.unwrap());
    for socket in [&mut first, &mut second] {
        socket.send("hello".into()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), "hello".into());
    }
    assert_eq!(held(&gate).await, 2);
    match open_socket(address).await {
        Err(tungstenite::Error::Http(denied)) => assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS),
        other => panic!("{other:?}"),
    }
    first.close(None).await.unwrap();
    while first.next().await.is_some() {}
    holds(&gate, 1, "one is closed by its protocol").await;
    open_socket(address).await.unwrap().close(None).await.unwrap();
    drop(second);
    holds(&gate, 0, "the connection of the other has ended").await;
    assert_eq!(codes.take(), [""; 0]);
}

#[tokio::test]
async fn tunnel_holds_its_permit_until_it_is_closed() {
    let (_server, gate, codes) = observed();
    let address = serve(&gate).await;
    let (mut first, mut second) = (open_tunnel(address, "200").await, open_tunnel(address, "200").await);
    echoes(&mut first).await;
    echoes(&mut second).await;
    assert_eq!(held(&gate).await, 2);
    drop(open_tunnel(address, "429").await);
    drop(first);
    holds(&gate, 1, "one is closed").await;
    drop(second);
    holds(&gate, 0, "all are closed").await;
    assert_eq!(codes.take(), [""; 0]);
}

#[tokio::test]
async fn upgrade_without_the_guard_is_a_warning() {
    let (_server, gate, codes) = observed();
    let mut client = connect(serve(&gate).await, "/forget", "101").await;
    echoes(&mut client).await;
    holds(&gate, 0, "the handler did not keep the permit").await;
    soon("the warning", async || !codes.is_empty()).await;
    assert_eq!(codes.take(), ["upgrade-without-permits"]);
}

#[tokio::test]
async fn tunnel_without_the_guard_is_a_warning_and_other_responses_are_not() {
    for (method, status, expected) in [
        (Method::CONNECT, StatusCode::OK, &["upgrade-without-permits"][..]),
        (Method::CONNECT, StatusCode::FORBIDDEN, &[]),
        (Method::GET, StatusCode::OK, &[]),
        (Method::GET, StatusCode::SWITCHING_PROTOCOLS, &["upgrade-without-permits"]),
    ] {
        let (_server, gate, codes) = observed();
        let service = layer(&gate).layer(service_fn(move |_: http::Request<String>| {
            let response = http::Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap();
            async move { Ok::<_, Infallible>(response) }
        }));
        let mut sent = request("a");
        *sent.method_mut() = method.clone();
        service.oneshot(sent).await.unwrap();
        assert_eq!(codes.take(), expected, "{method} {status}");
    }
}

#[tokio::test]
async fn upgraded_connections_are_no_samples_of_an_adaptive_limit() {
    for (status, is_sample) in [(StatusCode::SWITCHING_PROTOCOLS, false), (StatusCode::OK, true)] {
        let clock = ManualClock::new();
        let quota = Quota::in_flight(40);
        let gate = memory_with(&clock).gate("gate", quota).adaptive(Adaptive::new());
        let kept: Arc<Mutex<Vec<RequestPermits>>> = Arc::default();
        let keep = kept.clone();
        let service = layer(&gate).layer(service_fn(move |request: http::Request<String>| {
            keep.lock().unwrap().extend(request.extensions().get::<RequestPermits>().cloned());
            let response = http::Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap();
            async move { Ok::<_, Infallible>(response) }
        }));
        for _ in 0..16 {
            for _ in 0..8 {
                service.clone().oneshot(request("a")).await.unwrap();
            }
            assert_eq!(kept.lock().unwrap().len(), 8, "{status}");
            clock.advance(Duration::from_millis(200));
            kept.lock().unwrap().clear();
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.adaptive_limit("a") > Some(8), is_sample, "{status}");
    }
}

//! Serves a router over HTTP/1.1 without TLS: the HTTP port and the admin port.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::Request as AnyRequest;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::body::READ_TIMEOUT;
use crate::connections::{Bounded, Place, Port, Stop};
use crate::origin;

/// The time in which connections get the responses to requests that were under way to them when the port closed.
const LINGER: Duration = Duration::from_millis(500);
/// The maximum size of a head, and of the part of a body that is read at once. hyper's default is 400 KiB.
const MAX_BUFFER_BYTES: usize = 16 << 10;

/// Serves connections until the server stops, then those that are in use.
pub(crate) async fn serve(router: Router, port: Port) {
    let router = router.layer(from_fn(require_host));
    port.serve(|stream, place, stop| exchange(router.clone(), stream, place, stop)).await;
}

async fn require_host(request: AnyRequest, next: Next) -> Response {
    match origin::has_valid_host(request.version(), request.headers()) {
        true => next.run(request).await,
        false => (StatusCode::BAD_REQUEST, "send one `Host` header with a valid host\n").into_response(),
    }
}

/// Serves the requests of a connection until its client closes it or the server stops. Each request has the [`Place`] of
/// its connection among its extensions.
async fn exchange(router: Router, stream: TcpStream, place: Place, mut stop: Stop) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(place.clone());
        router.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(READ_TIMEOUT).max_buf_size(MAX_BUFFER_BYTES);
    let mut connection = pin!(http.serve_connection(TokioIo::new(Bounded::new(stream)), service));
    let stopped = async {
        stop.stopped().await;
        // hyper closes a connection whose request it has not read yet.
        sleep(LINGER).await;
    };
    // An error is the client's: it has left, or did not send HTTP.
    tokio::select! {
        // First the request that has arrived while this process was not running.
        biased;
        _ = &mut connection => return,
        () = stopped => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

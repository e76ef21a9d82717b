//! Serves a router over HTTP/1.1 without TLS: the HTTP port and the admin port.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::incoming::accept;
use crate::metrics::{Counted, ServiceMetrics};

/// The maximum time in which a client sends the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of the client of a connection, among the extensions of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddr(pub(crate) SocketAddr);

/// A port that serves HTTP/1.1.
pub(crate) struct Port {
    /// Its name in metrics.
    pub(crate) name: &'static str,
    pub(crate) listener: TcpListener,
    /// The maximum number of open connections. Beyond it, a new connection is closed at once.
    pub(crate) max_connections: Option<usize>,
    pub(crate) metrics: Option<ServiceMetrics>,
}

/// Serves connections until `stop` ends, then those that are in use.
pub(crate) async fn serve(router: Router, port: Port, stop: impl Future<Output = ()>) {
    let Port { name, listener, max_connections, metrics } = port;
    let open = metrics.as_ref().map(|metrics| metrics.connections(name));
    let rejected = metrics.as_ref().map(|metrics| metrics.rejected_connections(name, "too_many"));
    let permits = Arc::new(Semaphore::new(max_connections.unwrap_or(Semaphore::MAX_PERMITS)));
    let router = TowerToHyperService::new(router);
    let connections = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            stream = accept(&listener) => stream,
            () = &mut stop => break,
        };
        // A connection without an address has ended.
        let Ok(peer) = stream.peer_addr() else { continue };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            rejected.iter().for_each(|rejected| rejected.increment(1));
            continue;
        };
        let stream = Counted::new(stream, open.clone());
        let router = router.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(PeerAddr(peer));
            router.call(request)
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // An error is the client's: it has left, or did not send HTTP.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    connections.shutdown().await;
}

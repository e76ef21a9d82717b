//! The service behind the proxy. It counts its requests; `/fail` responds with 500.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    calls: Arc<AtomicUsize>,
}

impl Upstream {
    /// Starts the service. It ends with the test's runtime.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), calls: Arc::default() };
        let calls = upstream.calls.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let calls = calls.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    let status = if request.uri().path() == "/fail" { 500 } else { 200 };
                    let response = Response::builder().status(status).header("x-upstream", "yes");
                    std::future::ready(Ok::<_, Infallible>(response.body("upstream\n".to_owned()).unwrap()))
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        upstream
    }

    /// Returns the number of requests that reached the service.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

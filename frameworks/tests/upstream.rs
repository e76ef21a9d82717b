//! The services behind the proxy.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Counts its requests. `/fail` responds with 500.
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
                    let reason = ReasonPhrase::from_static(b"Well done");
                    let response =
                        Response::builder().status(status).header("x-upstream", "yes").extension(reason);
                    std::future::ready(Ok::<_, Infallible>(response.body("upstream\n".to_owned()).unwrap()))
                });
                let mut server = http1::Builder::new();
                tokio::spawn(server.title_case_headers(true).serve_connection(TokioIo::new(stream), service));
            }
        });
        upstream
    }

    /// Returns the number of requests that reached the service.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// A body's begin, longer than pingora's buffers, and its end.
static BEGIN: [u8; 256 * 1024] = [b'.'; 256 * 1024];
const END: &[u8] = b"end";

/// Holds the end of each response until [`finish`](Self::finish).
pub(crate) struct HeldUpstream {
    pub(crate) address: SocketAddr,
    is_finished: watch::Sender<bool>,
}

impl HeldUpstream {
    /// Starts the service. It ends with the test's runtime.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream =
            Self { address: listener.local_addr().unwrap(), is_finished: watch::Sender::new(false) };
        let is_finished = upstream.is_finished.subscribe();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut is_finished = is_finished.clone();
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        request.push(stream.read_u8().await.unwrap());
                    }
                    let length = BEGIN.len() + END.len();
                    let head =
                        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
                    stream.write_all(&[head.as_bytes(), &BEGIN].concat()).await.unwrap();
                    is_finished.wait_for(|is_finished| *is_finished).await.unwrap();
                    stream.write_all(END).await.unwrap();
                });
            }
        });
        upstream
    }

    /// Ends all responses, also later ones.
    pub(crate) fn finish(&self) {
        self.is_finished.send_replace(true);
    }
}

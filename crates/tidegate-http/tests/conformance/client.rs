//! A client with one persistent connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::http::fixture::Reply;

/// A connection. It is closed when this is dropped, also while a request is under way.
pub(crate) struct Client {
    requests: Requests,
    connection: JoinHandle<hyper::Result<()>>,
}

enum Requests {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    /// Connects over HTTP/1.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (requests, connection) = http1::handshake(stream).await.unwrap();
        Self { requests: Requests::Http1(requests), connection: tokio::spawn(connection) }
    }

    /// Connects over HTTP/2, which the server must know beforehand to accept.
    pub(super) async fn connect_http2(address: SocketAddr) -> Self {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (requests, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        Self { requests: Requests::Http2(requests), connection: tokio::spawn(connection) }
    }

    /// Sends a request, and returns without reading the body of the response.
    pub(crate) async fn begin(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> hyper::Result<Response<Incoming>> {
        let request = headers
            .iter()
            .fold(Request::builder().method(method), |request, (name, value)| request.header(*name, *value));
        match &mut self.requests {
            Requests::Http1(requests) => {
                let request = request.uri(path).header("host", "x").body(Empty::new()).unwrap();
                requests.ready().await?;
                requests.send_request(request).await
            }
            Requests::Http2(requests) => {
                let request = request.uri(format!("http://x{path}")).body(Empty::new()).unwrap();
                requests.ready().await?;
                requests.send_request(request).await
            }
        }
    }

    pub(crate) async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)]) -> Reply {
        let (head, body) = self.begin(method, path, headers).await.unwrap().into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        Reply { status: head.status, headers: head.headers, body }
    }

    /// Sends a GET with the API key `a`.
    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        self.send(Method::GET, path, &[("x-api-key", "a")]).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Returns the next piece of a body, or `None` at its end. Over HTTP/2, the last frame may be empty.
pub(crate) async fn next_piece(body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
    loop {
        let piece = body.frame().await?.map(|frame| frame.into_data().unwrap_or_default());
        if !piece.as_ref().is_ok_and(Bytes::is_empty) {
            return Some(piece);
        }
    }
}

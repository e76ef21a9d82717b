//! A client with one persistent connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::http::fixture::Reply;

/// A connection. It is closed when this is dropped, also while a request is under way.
pub(crate) struct Client {
    requests: SendRequest<Empty<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        Self { requests, connection: tokio::spawn(connection) }
    }

    /// Sends a request, and returns without reading the body of the response.
    pub(crate) async fn begin(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> hyper::Result<Response<Incoming>> {
        let request = Request::builder().method(method).uri(path).header("host", "x");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        self.requests.ready().await?;
        self.requests.send_request(request.body(Empty::new()).unwrap()).await
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

/// Returns the next piece of a body, or `None` at its end.
pub(crate) async fn next_piece(body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
    Some(body.frame().await?.map(|frame| frame.into_data().unwrap_or_default()))
}

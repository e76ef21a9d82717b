//! hyper: the layer as a tower service, without a framework.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate_http::{PeerAddr, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn};

use super::app::{App, FAILED, Seen, Server};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(super) fn serve(layer: RateLimitLayer, app: App) -> Server {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let service = layer.layer(service_fn(move |request| answer(app.clone(), request)));
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = service.clone().map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddr(peer));
                request
            });
            let service = TowerToHyperService::new(service);
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Server { address, is_http2: false, _running: Box::new(()) }
}

async fn answer(app: App, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let extensions = request.extensions();
    let seen = Seen {
        path: request.uri().path().to_owned(),
        decision: extensions.get().cloned(),
        rules_decision: extensions.get().cloned(),
        usage: extensions.get().cloned(),
        permits: extensions.get().cloned().unwrap_or_default(),
    };
    let (status, body) = match app.answer(seen).await {
        Ok(answer) => {
            (answer.status, StreamBody::new(answer.body.map(|piece| piece.map(Frame::data))).boxed_unsync())
        }
        Err(_) => (FAILED, Empty::new().map_err(|never| match never {}).boxed_unsync()),
    };
    Ok(Response::builder().status(status).body(body).unwrap())
}

//! axum: the layer in a `Router`.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::any;
use axum::{Extension, Router};
use tidegate::Decision;
use tidegate_http::{RateLimitLayer, RequestPermits, Usage};
use tidegate_rules::RulesDecision;

use super::app::{App, FAILED, Seen, Server};

pub(super) fn serve(layer: RateLimitLayer, app: App) -> Server {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let routes = Router::new().route("/", any(answer)).route("/{*rest}", any(answer));
    let routes = routes.layer(layer).with_state(app).into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Server { address, is_http2: false, _running: Box::new(()) }
}

async fn answer(
    State(app): State<App>,
    uri: Uri,
    decision: Option<Extension<Decision>>,
    rules_decision: Option<Extension<RulesDecision>>,
    usage: Option<Usage>,
    permits: RequestPermits,
) -> Result<Response, StatusCode> {
    let seen = Seen {
        path: uri.path().to_owned(),
        decision: decision.map(|Extension(decision)| decision),
        rules_decision: rules_decision.map(|Extension(decision)| decision),
        usage,
        permits,
    };
    let answer = app.answer(seen).await.map_err(|_| StatusCode::from_u16(FAILED).unwrap())?;
    Ok(Response::builder().status(answer.status).body(Body::from_stream(answer.body)).unwrap())
}

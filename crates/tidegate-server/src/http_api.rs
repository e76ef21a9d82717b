//! The HTTP port: `/json`, `/livez` and `/readyz`.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures_util::FutureExt;
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::incoming::{Bounded, accept};
use crate::json;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::readiness::Readiness;
use crate::service::RateLimitService;
use crate::service_error::ServiceError;

/// The maximum time in which a client sends the head of a request, and then the body.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct HttpApi {
    pub(crate) service: RateLimitService,
    pub(crate) readiness: Readiness,
    pub(crate) max_message_bytes: usize,
}

/// The time in which connections get the responses to requests that were under way to them when the port closed.
const LINGER: Duration = Duration::from_millis(100);

/// Serves connections until `stop` ends, then those that are in use.
///
/// Once the server reports that it is stopping, each response closes its connection. So a client does not send a request
/// on a connection that the server is about to close, which would leave it without a response.
pub(crate) async fn serve(api: HttpApi, listener: TcpListener, stop: impl Future<Output = ()>) {
    let readiness = api.readiness.clone();
    let router = Router::new()
        // All methods, as in Envoy's service.
        .route("/json", any(decide))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .with_state(api);
    let connections = GracefulShutdown::new();
    let spawn = |stream| {
        let (router, readiness) = (TowerToHyperService::new(router.clone()), readiness.clone());
        let service = service_fn(move |request| {
            let (response, readiness) = (router.call(request), readiness.clone());
            async move {
                let mut response = response.await?;
                if readiness.is_stopping() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(READ_TIMEOUT);
        let connection = http.serve_connection(TokioIo::new(Bounded::new(stream)), service);
        // An error is the client's: it has left, or did not send HTTP.
        tokio::spawn(connections.watch(connection));
    };
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            stream = accept(&listener) => spawn(stream),
            () = &mut stop => break,
        }
    }
    // The connections that the system has accepted: it would reset them.
    while let Some(stream) = accept(&listener).now_or_never() {
        spawn(stream);
    }
    drop(listener);
    // hyper closes connections whose request it has not read yet.
    sleep(LINGER).await;
    connections.shutdown().await;
}

async fn decide(State(api): State<HttpApi>, request: Request) -> Result<Response, Infallible> {
    Ok(match respond(&api, request.into_body()).await {
        Ok((status, json)) => {
            let mut response = (status, json).into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err((status, message)) => (status, message + "\n").into_response(),
    })
}

async fn respond(api: &HttpApi, body: Body) -> Result<(StatusCode, Vec<u8>), (StatusCode, String)> {
    let bad = |message: String| (StatusCode::BAD_REQUEST, message);
    let body = timeout(READ_TIMEOUT, to_bytes(body, api.max_message_bytes)).await;
    let body = body.map_err(|_| bad(format!("the body did not end within {READ_TIMEOUT:?}")))?;
    let body = body.map_err(|error| bad(format!("cannot read the body: {error}")))?;
    let request = json::parse(&body).map_err(|error| bad(format!("the body is not a request: {error}")))?;
    let response = api.service.decide(&request).await.map_err(|error| match error {
        ServiceError::Invalid(text) => bad(text),
        ServiceError::Limiter(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    })?;
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let json = json::write(&response).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))?;
    Ok((status, json))
}

async fn readyz(State(api): State<HttpApi>) -> (StatusCode, String) {
    match api.readiness.check().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}

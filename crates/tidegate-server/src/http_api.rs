//! The HTTP port: `/json`, `/v1`, `/livez` and `/readyz`.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::body::{self, READ_TIMEOUT};
use crate::connections::{self, Bounded, Stop};
use crate::http_state::HttpState;
use crate::json;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::readiness::Readiness;
use crate::service_error::ServiceError;
use crate::trace::{SpanHook, traced};
use crate::v1;

/// The time in which connections get the responses to requests that were under way to them when the port closed.
const LINGER: Duration = Duration::from_millis(100);

/// Returns the routes of the port.
pub(crate) fn router(api: HttpState, hook: SpanHook) -> Router {
    let readiness = api.readiness.clone();
    let router = Router::new()
        // All methods, as in Envoy's service.
        .route("/json", any(decide))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .nest("/v1", v1::router())
        .with_state(api)
        .layer(from_fn_with_state(readiness, close_while_stopping));
    traced(router, hook)
}

/// Lets each response close its connection once the server reports that it is stopping. So a client does not send a
/// request on a connection that the server is about to close, which would leave it without a response.
async fn close_while_stopping(State(readiness): State<Readiness>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if readiness.is_stopping() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Serves connections until the server stops, then those that are in use.
pub(crate) async fn serve(router: Router, listener: TcpListener, max_connections: usize, stop: Stop) {
    let connection = |stream, stop| exchange(router.clone(), stream, stop);
    connections::serve(listener, max_connections, stop, connection).await;
}

/// Serves the requests of a connection until its client closes it or the server stops.
async fn exchange(router: Router, stream: TcpStream, mut stop: Stop) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(READ_TIMEOUT);
    let stream = TokioIo::new(Bounded::new(stream));
    let mut connection = pin!(http.serve_connection(stream, TowerToHyperService::new(router)));
    let stopped = async {
        stop.stopped().await;
        // hyper closes a connection whose request it has not read yet.
        sleep(LINGER).await;
    };
    // An error is the client's: it has left, or did not send HTTP.
    tokio::select! {
        _ = &mut connection => return,
        () = stopped => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

async fn decide(State(api): State<HttpState>, request: Request) -> Result<Response, Infallible> {
    Ok(match respond(&api, request.into_body()).await {
        Ok((status, json)) => {
            let mut response = (status, json).into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err((status, message)) => (status, message + "\n").into_response(),
    })
}

async fn respond(api: &HttpState, body: Body) -> Result<(StatusCode, Vec<u8>), (StatusCode, String)> {
    let bad = |message: String| (StatusCode::BAD_REQUEST, message);
    let body = body::read(body, api.max_message_bytes).await.map_err(|error| bad(error.to_string()))?;
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

async fn readyz(State(api): State<HttpState>) -> (StatusCode, String) {
    match api.readiness.check().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}

//! The HTTP port: `/json`, `/v1`, `/livez`, `/readyz` and `/healthcheck`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use tokio::time::Instant;

use crate::body::BodyError;
use crate::connections::Place;
use crate::for_clients::{retry_after, shortened};
use crate::http_state::HttpState;
use crate::metrics::ServiceMetrics;
use crate::metrics::requests::HttpRequests;
use crate::problem::Problem;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::readiness::Readiness;
use crate::service_error::ServiceError;
use crate::trace::{SpanHook, traced};
use crate::{body, json, origin, v1};

/// Returns the routes of the port. `is_loopback`: only programs of this machine reach it.
pub(crate) fn router(
    api: HttpState,
    is_loopback: bool,
    metrics: Option<ServiceMetrics>,
    hook: SpanHook,
) -> Router {
    let readiness = api.readiness.clone();
    let router = Router::new()
        // All methods, as in Envoy's service.
        .route("/json", any(decide))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(healthcheck))
        .fallback(async || Problem::no_such_route())
        .method_not_allowed_fallback(async || Problem::method_not_allowed("GET"))
        .nest("/v1", v1::router())
        .with_state(api)
        .layer(from_fn_with_state(is_loopback, refuse_pages))
        .layer(from_fn_with_state(readiness, admit));
    let router = match metrics {
        Some(metrics) => router.layer(from_fn_with_state(Arc::new(HttpRequests::new(&metrics)), count)),
        None => router,
    };
    traced(router, hook)
}

/// The paths that are served on each connection, also above the maximum.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/healthcheck"];

/// Answers only probes on the connections of guests, and closes these.
///
/// Lets each response close its connection once the server reports that it is stopping. So a client does not send a
/// request on a connection that the server is about to close, which would leave it without a response.
async fn admit(State(readiness): State<Readiness>, request: Request, next: Next) -> Response {
    let is_guest = request.extensions().get().is_some_and(Place::is_guest);
    let mut response = match is_guest && !PROBES.contains(&request.uri().path()) {
        true => Problem::too_many_connections().into_response(),
        false => next.run(request).await,
    };
    if is_guest || readiness.is_stopping() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Refuses requests that a page in a browser could have sent: it could charge units, and give them back. The port has no
/// pages of its own. Safe methods pass, because a browser sends no body with them.
///
/// The names of a port that other machines reach are not known here.
async fn refuse_pages(State(is_loopback): State<bool>, request: Request, next: Next) -> Response {
    let (headers, can_charge) = (request.headers(), !request.method().is_safe());
    if can_charge && origin::is_sent_by_page(headers) {
        return Problem::sent_by_page().into_response();
    }
    if can_charge && is_loopback && !origin::is_known_host(headers, request.uri(), &[]) {
        return Problem::unknown_host().into_response();
    }
    next.run(request).await
}

/// Counts a request by its route. The path of a client is no label: it could be any.
async fn count(
    State(requests): State<Arc<HttpRequests>>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    requests.answered(route, response.status(), began);
    response
}

async fn decide(State(api): State<HttpState>, request: Request) -> Result<Response, Infallible> {
    Ok(match respond(&api, request.into_body()).await {
        Ok((status, json)) => {
            let mut response = (status, json).into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err((status, message)) => {
            let mut response = (status, shortened(message) + "\n").into_response();
            if status == StatusCode::SERVICE_UNAVAILABLE {
                // Unfinished requests end within seconds.
                response.headers_mut().insert(RETRY_AFTER, retry_after(Duration::from_secs(1)));
            }
            response
        }
    })
}

async fn respond(api: &HttpState, body: Body) -> Result<(StatusCode, Vec<u8>), (StatusCode, String)> {
    let bad = |message: String| (StatusCode::BAD_REQUEST, message);
    let body = body::read(body, api.max_message_bytes, &api.body_memory).await;
    let body = body.map_err(|error| match error {
        BodyError::NoMemory => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        error => bad(error.to_string()),
    })?;
    let request = json::parse(&body).map_err(|error| bad(format!("the body is not a request: {error}")))?;
    let response = api.service.decide(&request).await.map_err(|error| match error {
        ServiceError::Invalid(text) => bad(text),
        error => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
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
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// Replies as envoyproxy/ratelimit does, for load balancers that check its path.
async fn healthcheck(State(api): State<HttpState>) -> (StatusCode, String) {
    match api.readiness.check_health().await {
        Ok(()) => (StatusCode::OK, "OK".to_owned()),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
    }
}

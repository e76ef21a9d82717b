//! The HTTP port: `/json`, `/livez` and `/readyz`.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use tokio::time::{Instant, timeout};

use crate::json;
use crate::metrics::ServiceMetrics;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::readiness::Readiness;
use crate::service::RateLimitService;
use crate::service_error::ServiceError;

/// The maximum time in which a client sends the body of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct HttpApi {
    pub(crate) service: RateLimitService,
    pub(crate) readiness: Readiness,
    pub(crate) max_message_bytes: usize,
}

/// Returns the pages of the port.
pub(crate) fn router(api: HttpApi, metrics: Option<ServiceMetrics>) -> Router {
    let router = Router::new()
        // All methods, as in Envoy's service.
        .route("/json", any(decide))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .with_state(api);
    match metrics {
        Some(metrics) => router.layer(from_fn_with_state(metrics, count)),
        None => router,
    }
}

/// Counts a request by its route. The path of a client is no label: it could be any.
async fn count(
    State(metrics): State<ServiceMetrics>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    metrics.answered("http", route, response.status().as_str(), began);
    response
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

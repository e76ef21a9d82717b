//! `/metrics`, for Prometheus.

use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};

use super::access::Viewer;
use super::problem::Problem;
use super::state::AdminState;

/// Prometheus's text format.
const TEXT_FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Needs the right to read, unless the metrics are public.
pub(super) async fn show(State(state): State<AdminState>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    if !state.settings.has_public_metrics
        && let Err(rejection) = Viewer::from_request_parts(&mut parts, &state).await
    {
        return rejection;
    }
    let Some(metrics) = &state.metrics else {
        let text = "this server counts nothing: it was started without metrics";
        return Problem::new(StatusCode::NOT_FOUND, text).respond(&parts.headers);
    };
    let mut response = metrics.render().into_response();
    response.headers_mut().insert(CONTENT_TYPE, TEXT_FORMAT);
    response
}

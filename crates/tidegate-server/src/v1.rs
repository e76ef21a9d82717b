//! The JSON API under `/v1`, for clients without gRPC.

mod checks;
mod decided;
mod examples;
mod in_flight;
mod mistake;
mod openapi;
mod problem;
mod request;
mod reservations;
mod response;
mod subject;

use axum::Router;
use axum::http::Uri;
use axum::routing::{get, post};

use crate::http_state::HttpState;
use crate::problem::Problem;

/// Returns the routes below `/v1`.
pub(crate) fn router() -> Router<HttpState> {
    Router::new()
        .route("/check", post(checks::check))
        .route("/peek", post(checks::peek))
        .route("/check_all", post(checks::check_all))
        .route("/reserve", post(reservations::reserve))
        .route("/commit", post(reservations::commit))
        .route("/cancel", post(reservations::cancel))
        .route("/acquire", post(in_flight::acquire))
        .route("/release", post(in_flight::release))
        .route("/openapi.json", get(openapi::document))
        .method_not_allowed_fallback(async |uri: Uri| {
            Problem::method_not_allowed(if uri.path().ends_with(".json") { "GET" } else { "POST" })
        })
        .fallback(async || Problem::no_such_endpoint())
}

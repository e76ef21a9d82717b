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

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::body::BodyMemory;
use crate::permits::PermitTable;
use crate::problem::Problem;
use crate::readiness::Readiness;
use crate::service::RateLimitService;

/// What the handlers of the HTTP port share, those of `/v1` and the others.
#[derive(Clone, Debug)]
pub(crate) struct HttpState {
    pub(crate) service: RateLimitService,
    pub(crate) readiness: Readiness,
    pub(crate) permits: Arc<PermitTable>,
    pub(crate) max_message_bytes: usize,
    pub(crate) body_memory: Arc<BodyMemory>,
}

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
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .fallback(async || Problem::no_such_endpoint())
}

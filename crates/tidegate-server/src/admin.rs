//! The admin port: for operators and their tools, apart from the ports for clients of the service.

pub(crate) mod access;
mod api;
pub(crate) mod audit;
pub(crate) mod change;
mod config;
mod headers;
mod metrics;
pub(crate) mod problem;
mod settings;
mod state;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;

pub use self::access::{AdminTokens, AdminTokensError, Role};
pub(crate) use self::access::{Form, Identity, Operator, Viewer, csrf_token};
pub use self::audit::audit_json;
pub(crate) use self::change::{ChangeFields, ChangeTracker, Changed, Effect, Verb, apply, describe};
pub(crate) use self::problem::Problem;
pub use self::settings::Admin;
pub(crate) use self::state::{AdminState, Listening};
use crate::console;

/// Returns all pages of the port. Each handler states the right it needs by an argument: see [`access`].
pub(crate) fn router(state: AdminState) -> Router {
    Router::new()
        .merge(console::routes())
        .route("/config", get(config::show))
        .route("/metrics", get(metrics::show))
        .merge(access::routes(state.access.clone()))
        .merge(api::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(state.access.clone(), access::guard))
        // The outer one: errors of the guard have the headers, too.
        .layer(from_fn(headers::add))
        .with_state(state)
}

async fn not_found(request: Request) -> Response {
    Problem::new(StatusCode::NOT_FOUND, "the admin port has no such page").respond(request.headers())
}

async fn method_not_allowed(request: Request) -> Response {
    let text = format!("{} is not a method of this page: see the header Allow", request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, text).respond(request.headers())
}

//! The admin port: for operators and their tools, apart from the ports for clients of the service.

mod access;
mod change_tracker;
mod config;
pub mod pages;
mod settings;
mod state;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, StatusCode};

use self::access::{Access, Viewer};
pub use self::access::{AdminTokens, AdminTokensError, Role};
pub(crate) use self::change_tracker::ChangeTracker;
pub use self::settings::Admin;
pub(crate) use self::state::{AdminState, Listening};
use crate::problem::Problem;

/// Returns all routes of the port. Each handler states the right it needs by an argument: see [`access`].
pub(crate) fn router(state: AdminState, changes: &ChangeTracker) -> Router {
    let (service, pages) = (&state.service, state.settings.pages.clone());
    let limiter = service.rules().limiter().clone();
    let access = Access::new(state.settings.access(), limiter, state.metrics.as_ref());
    let routes = Router::new().route("/config", get(config::show)).route("/metrics", get(metrics));
    let routes = match &pages {
        Some(pages) => {
            let login = access::routes(access.clone(), pages.clone());
            routes.merge(login).merge(pages.routes(service, changes).with_state(()))
        }
        None => routes,
    };
    let routes = routes.fallback(not_found).method_not_allowed_fallback(method_not_allowed);
    let routes = routes.layer(from_fn_with_state(access, access::guard));
    let routes = match pages {
        Some(pages) => routes.layer(from_fn_with_state(pages, pages::show)),
        None => routes,
    };
    // The outer one: errors of the guard have the headers, too.
    routes.layer(from_fn(add)).with_state(state)
}

/// Prometheus's text format.
const TEXT_FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// `/metrics`, for Prometheus. Needs the right to read, unless the metrics are public.
async fn metrics(State(state): State<AdminState>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    if !state.settings.has_public_metrics
        && let Err(rejection) = Viewer::from_request_parts(&mut parts, &state).await
    {
        return rejection.into_response();
    }
    let Some(metrics) = &state.metrics else {
        let text = "this server counts nothing: it was started without metrics";
        return Problem::new(StatusCode::NOT_FOUND, text).into_response();
    };
    let mut response = metrics.render().into_response();
    response.headers_mut().insert(CONTENT_TYPE, TEXT_FORMAT);
    response
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "the admin port has no such page")
}

async fn method_not_allowed(method: Method) -> Problem {
    let text = format!("{method} is not a method of this page: see the header Allow");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, text)
}

// The headers of each response of the admin port, also of its errors.

/// Scripts, style sheets, images and requests only of this port, and no script or style in a page itself. So a text
/// that a page did not escape cannot run, and nothing reaches another host.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    // Pages of this port share no process with pages of other sites.
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Adds the headers. A handler may set its own `Cache-Control`, as for files that never change.
async fn add(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

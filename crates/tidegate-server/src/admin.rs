//! The admin port: for operators and their tools, apart from the ports for clients of the service.

pub(crate) mod access;
mod api;
pub(crate) mod audit;
pub(crate) mod change;
mod config;
mod headers;
pub(crate) mod html;
mod metrics;
pub(crate) mod problem;
mod settings;
mod state;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

pub use self::access::{AdminTokens, AdminTokensError, Role};
use self::access::{Viewer, csrf_token};
use self::problem::Problem;
pub use self::settings::Admin;
pub(crate) use self::state::AdminState;

/// Returns all pages of the port. Each handler states the right it needs by an argument: see [`access`].
pub(crate) fn router(state: AdminState) -> Router {
    Router::new()
        .route("/", get(start))
        .route("/assets/plain.css", get(style))
        .route("/config", get(config::show))
        .route("/metrics", get(metrics::show))
        .merge(access::routes(state.access.clone()))
        .merge(api::routes())
        .fallback(not_found)
        .layer(from_fn_with_state(state.access.clone(), access::guard))
        // The outer one: errors of the guard have the headers, too.
        .layer(from_fn(headers::add))
        .with_state(state)
}

async fn start(Viewer(identity): Viewer) -> Html<String> {
    let who = format!("<p>{}, {}</p>\n", html::escape(&identity.name), identity.role.as_str());
    let log_out = match identity.has_session {
        false => String::new(),
        true => format!(
            "<form method=\"post\" action=\"/logout\"><input name=\"csrf\" type=\"hidden\" value=\"{}\">\
             <button>Log out</button></form>",
            csrf_token(&identity)
        ),
    };
    let links = "<ul>\n<li><a href=\"/config?format=text\">Active rules</a></li>\n\
                 <li><a href=\"/metrics\">Metrics</a></li>\n<li><a href=\"/api/audit\">Audit log</a></li>\n</ul>\n";
    Html(html::page("Admin port", &(who + links + &log_out)))
}

/// Needs no right: the page of the login uses it.
async fn style() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], html::STYLE)
}

async fn not_found(request: Request) -> Response {
    Problem::new(StatusCode::NOT_FOUND, "the admin port has no such page").respond(request.headers())
}

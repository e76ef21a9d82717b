//! The admin port: for operators and their tools, apart from the ports for clients of the service.

mod access;
mod audit;
mod headers;
mod html;
mod problem;
mod settings;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tidegate::Limiter;
use tidegate::admin::Inspector;

use self::access::{Access, Viewer, csrf_token};
pub use self::access::{AdminTokens, AdminTokensError, Role};
use self::audit::AuditLog;
use self::problem::Problem;
pub use self::settings::Admin;
use crate::metrics::ServiceMetrics;
use crate::service::RateLimitService;

/// What the handlers of the admin port work with. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    /// The rules in force, and their decisions.
    pub(crate) service: RateLimitService,
    pub(crate) limiter: Limiter,
    /// `None` if the limiter has no Redis.
    pub(crate) inspector: Option<Inspector>,
    pub(crate) audit: AuditLog,
    pub(crate) access: Access,
    pub(crate) metrics: Option<ServiceMetrics>,
}

impl AdminState {
    pub(crate) fn new(service: RateLimitService, admin: &Admin, metrics: Option<ServiceMetrics>) -> Self {
        let limiter = service.rules().limiter().clone();
        let inspector = Inspector::new(&limiter).ok();
        let audit = AuditLog::new();
        Self { service, limiter, inspector, audit, access: Access::new(admin.access()), metrics }
    }
}

/// Returns all pages of the port. Each handler states the right it needs by an argument: see [`access`].
pub(crate) fn router(state: AdminState) -> Router {
    Router::new()
        .route("/", get(start))
        .route("/assets/plain.css", get(style))
        .merge(access::routes())
        .fallback(not_found)
        .layer(from_fn_with_state(state.clone(), access::guard))
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
    Html(html::page("Admin port", &(who + &log_out)))
}

/// Needs no right: the page of the login uses it.
async fn style() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], html::STYLE)
}

async fn not_found(request: Request) -> Response {
    Problem::new(StatusCode::NOT_FOUND, "the admin port has no such page").respond(request.headers())
}

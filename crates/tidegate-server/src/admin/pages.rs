//! What the pages of the admin port share with the server. They are in a crate of their own, `tidegate-console`, so that a
//! service without them compiles no templates.
//!
//! This module is for that crate: it can change in each release, and semantic versioning does not cover it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::Value;

pub use super::access::{Form, Identity, Json, Operator, Viewer};
pub use super::change_tracker::{ChangeTracker, ChangeUnderWay};
pub use crate::problem::Problem;
use crate::service::RateLimitService;

/// The pages of the admin port, for [`Admin::pages`](crate::Admin::pages).
pub trait Pages: Send + Sync {
    /// Returns the routes of the pages. Each handler states the right it needs by an argument: [`Viewer`] reads,
    /// [`Operator`] changes, [`Form`] and [`Json`] are bodies that a page of another site cannot have sent. A
    /// [`Problem`] in a response is shown to browsers by [`problem`](Self::problem).
    ///
    /// The end of the server waits for the changes that `changes` counts.
    fn routes(&self, service: &RateLimitService, changes: &ChangeTracker) -> Router;

    /// Returns the page of a problem.
    fn problem(&self, problem: &Problem) -> String;

    /// Returns the page of the login. It leads to the page `next`, and shows why the last attempt failed.
    fn login(&self, next: &str, error: Option<&str>) -> String;
}

/// Returns a response in JSON, with a line feed at its end.
#[must_use]
pub fn json_response(value: &Value) -> Response {
    let mut response = (value.to_string() + "\n").into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Marks the requests of a port with pages, which has a login.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasLogin;

/// Shows problems to browsers as pages.
pub(super) async fn show(State(pages): State<Arc<dyn Pages>>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(HasLogin);
    let is_browser = accepts_html(request.headers());
    let mut response = next.run(request).await;
    if is_browser && let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, html);
        *response.body_mut() = Body::from(pages.problem(&problem));
    }
    response
}

/// Returns whether the client shows pages.
pub(super) fn accepts_html(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines.any(|line| line.contains("text/html"))
}

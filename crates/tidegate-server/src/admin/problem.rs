//! Errors of the admin port: a problem document (RFC 9457), or a page for browsers.

use axum::response::{Html, IntoResponse, Response};
use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::json;

use crate::console::error_page;
use crate::shortened::shortened;

/// An error with its status, and what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: shortened(detail.into()) }
    }

    fn title(&self) -> &'static str {
        self.status.canonical_reason().unwrap_or("Error")
    }

    /// Returns whether the client shows pages.
    pub(crate) fn accepts_html(headers: &HeaderMap) -> bool {
        let mut lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        lines.any(|line| line.contains("text/html"))
    }

    /// Returns the response, in the format that the request accepts.
    pub(crate) fn respond(&self, headers: &HeaderMap) -> Response {
        if Self::accepts_html(headers) {
            return (self.status, Html(error_page(self.title(), &self.detail))).into_response();
        }
        let document =
            json!({ "title": self.title(), "status": self.status.as_u16(), "detail": self.detail });
        let mut response = (self.status, document.to_string() + "\n").into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

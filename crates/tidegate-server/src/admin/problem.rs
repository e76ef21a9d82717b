//! Errors of the admin port: problem documents (RFC 9457), which [`pages`](super::pages) shows to browsers as pages.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::json;

use crate::shortened::shortened;

/// An error with its status, and what to do about it.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The status of the response.
    pub status: StatusCode,
    /// What happened, and what to do.
    pub detail: String,
}

impl Problem {
    /// Creates a problem. Cuts a detail of more than 1,000 characters.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: shortened(detail.into()) }
    }

    pub(super) fn title(&self) -> &'static str {
        self.status.canonical_reason().unwrap_or("Error")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document =
            json!({ "title": self.title(), "status": self.status.as_u16(), "detail": self.detail });
        let mut response = (self.status, document.to_string() + "\n").into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response.extensions_mut().insert(self);
        response
    }
}

//! Errors of the HTTP port and of the admin port, as problem documents of RFC 9457.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde::Serialize;
use utoipa::ToSchema;

use crate::for_clients::{retry_after, shortened};

/// The beginning of all types of problems.
const TYPE_PREFIX: &str = "urn:tidegate:problem:";

/// A kind of problem of the HTTP API: the end of its type, its status and its title. Types are stable.
pub(crate) type ProblemKind = (&'static str, StatusCode, &'static str);

/// A request that was not answered, with the reason and what to do about it.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The end of its type. `None` on the admin port, where people read problems.
    pub(crate) name: Option<&'static str>,
    /// The status of the response.
    pub status: StatusCode,
    /// The kind of problem in words.
    pub title: &'static str,
    /// What happened, and what to do.
    pub detail: String,
    pub(crate) gate: Option<Box<str>>,
    pub(crate) cost_and_limit: Option<(u64, u64)>,
    pub(crate) retry_after: Option<Duration>,
}

/// A problem document of RFC 9457.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// The kind of problem, which is stable: `urn:tidegate:problem:` and a name.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    #[schema(required = true)]
    kind: String,
    /// The kind of problem in words.
    title: &'static str,
    /// The status of the response.
    status: u16,
    /// What happened, and what to do.
    detail: String,
    /// The gate, if the problem is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    gate: Option<String>,
    /// The units that the check consumes, if they are above the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    /// The gate's limit, which is below the cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
}

impl Problem {
    /// Creates a problem of the admin port. Cuts a detail of more than 1,000 characters.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let (title, detail) = (status.canonical_reason().unwrap_or("Error"), shortened(detail.into()));
        Self { name: None, status, title, detail, gate: None, cost_and_limit: None, retry_after: None }
    }

    /// Creates a problem of the HTTP API. Its client can repeat a request that the server cannot answer now.
    pub(crate) fn of_kind((name, status, title): ProblemKind, detail: impl Into<String>) -> Self {
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(Duration::from_secs(1));
        Self { name: Some(name), title, retry_after, ..Self::new(status, detail) }
    }
}

/// The response has the problem among its extensions, for a page in place of the document.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            kind: self.name.map_or(String::new(), |name| format!("{TYPE_PREFIX}{name}")),
            title: self.title,
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            gate: self.gate.clone().map(|gate| shortened(gate.into())),
            cost: self.cost_and_limit.map(|(cost, _)| cost),
            limit: self.cost_and_limit.map(|(_, limit)| limit),
        };
        // Strings and numbers always serialize. A line feed ends a document that people read in a terminal.
        let end = if self.name.is_none() { "\n" } else { "" };
        let body = serde_json::to_string(&body).unwrap_or_default() + end;
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, retry_after(wait));
        }
        response.extensions_mut().insert(self);
        response
    }
}

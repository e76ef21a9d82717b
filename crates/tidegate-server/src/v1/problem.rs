//! The kinds of problems of the API.

use http::StatusCode;
use tidegate::Error;

use crate::body::BodyError;
use crate::permits::NotReleased;
use crate::problem::{Problem, ProblemKind};
use crate::service_error::in_terms_of_the_api;

const MALFORMED_BODY: ProblemKind =
    ("malformed-body", StatusCode::BAD_REQUEST, "The body is not a JSON object of this endpoint.");
const INVALID_REQUEST: ProblemKind =
    ("invalid-request", StatusCode::BAD_REQUEST, "The request cannot be decided.");
const COST_ABOVE_LIMIT: ProblemKind =
    ("cost-above-limit", StatusCode::BAD_REQUEST, "The cost can never pass the limit.");
const SENT_BY_PAGE: ProblemKind =
    ("sent-by-page", StatusCode::FORBIDDEN, "A page in a browser has sent the request.");
const UNKNOWN_GATE: ProblemKind = ("unknown-gate", StatusCode::NOT_FOUND, "The gate is not known.");
const UNKNOWN_PERMIT: ProblemKind = ("unknown-permit", StatusCode::NOT_FOUND, "The permit is not held.");
const NO_SUCH_ENDPOINT: ProblemKind =
    ("no-such-endpoint", StatusCode::NOT_FOUND, "The endpoint does not exist.");
const METHOD_NOT_ALLOWED: ProblemKind =
    ("method-not-allowed", StatusCode::METHOD_NOT_ALLOWED, "The endpoint has another method.");
const BODY_TIMEOUT: ProblemKind =
    ("body-timeout", StatusCode::REQUEST_TIMEOUT, "The body arrived too slowly.");
const BODY_TOO_LARGE: ProblemKind =
    ("body-too-large", StatusCode::PAYLOAD_TOO_LARGE, "The body is too large.");
const UNSUPPORTED_MEDIA_TYPE: ProblemKind =
    ("unsupported-media-type", StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body is not declared as JSON.");
const UNKNOWN_HOST: ProblemKind =
    ("unknown-host", StatusCode::MISDIRECTED_REQUEST, "The request names another host than this machine.");
const TOO_MANY_PERMITS: ProblemKind =
    ("too-many-permits", StatusCode::SERVICE_UNAVAILABLE, "The server holds as many permits as it may.");
const TOO_MANY_UNFINISHED: ProblemKind = (
    "too-many-unfinished",
    StatusCode::SERVICE_UNAVAILABLE,
    "Unfinished requests take the memory that they may.",
);
const TOO_MANY_CONNECTIONS: ProblemKind =
    ("too-many-connections", StatusCode::SERVICE_UNAVAILABLE, "The port has as many connections as it may.");
const REDIS_UNAVAILABLE: ProblemKind =
    ("redis-unavailable", StatusCode::SERVICE_UNAVAILABLE, "Redis did not decide.");
const STOPPING: ProblemKind = ("stopping", StatusCode::SERVICE_UNAVAILABLE, "The server stops.");
const CORRUPT_STATE: ProblemKind =
    ("corrupt-state", StatusCode::INTERNAL_SERVER_ERROR, "The state of the key is not tidegate's.");
const INTERNAL: ProblemKind = ("internal", StatusCode::INTERNAL_SERVER_ERROR, "The limiter failed.");

impl Problem {
    pub(super) fn malformed(detail: String) -> Self {
        Self::of_kind(MALFORMED_BODY, detail)
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::of_kind(INVALID_REQUEST, detail)
    }

    pub(super) fn unknown_gate(gate: &str, detail: String) -> Self {
        Self { gate: Some(gate.into()), ..Self::of_kind(UNKNOWN_GATE, detail) }
    }

    pub(super) fn no_such_endpoint() -> Self {
        Self::of_kind(NO_SUCH_ENDPOINT, "no endpoint has this path: /v1/openapi.json lists all")
    }

    /// Returns the problem of a path that no route of the port has.
    pub(crate) fn no_such_route() -> Self {
        Self::of_kind(
            NO_SUCH_ENDPOINT,
            "no endpoint has this path: this port has /json (Envoy's messages as JSON), /v1 (/v1/openapi.json lists its \
             endpoints), /livez, /readyz and /healthcheck; metrics and the web console are on the admin port",
        )
    }

    /// Returns the problem of a request to an endpoint that has only another method.
    pub(crate) fn method_not_allowed(allowed: &str) -> Self {
        Self::of_kind(METHOD_NOT_ALLOWED, format!("use {allowed}"))
    }

    /// Returns the problem of a request that a page in a browser has sent.
    pub(crate) fn sent_by_page() -> Self {
        Self::of_kind(
            SENT_BY_PAGE,
            "pages in a browser cannot use this port: send the request from a program, without the headers `Origin` and \
             `Sec-Fetch-Site`; a proxy that passes on the headers of browsers must remove both",
        )
    }

    /// Returns the problem of a `Host` that a page of another site could have chosen.
    pub(crate) fn unknown_host() -> Self {
        Self::of_kind(
            UNKNOWN_HOST,
            "this port is on the loopback interface, where `Host` must be an address or `localhost`: send one of them, or \
             let the port listen on another address",
        )
    }

    pub(super) fn unsupported_media_type() -> Self {
        Self::of_kind(
            UNSUPPORTED_MEDIA_TYPE,
            "send the header `Content-Type: application/json` (curl --json)",
        )
    }

    pub(super) fn too_many_permits(max: usize) -> Self {
        let detail = format!("this server holds {max} permits for clients: release some, or acquire later");
        Self::of_kind(TOO_MANY_PERMITS, detail)
    }

    /// Returns the problem of a request on a connection above the maximum.
    pub(crate) fn too_many_connections() -> Self {
        Self::of_kind(
            TOO_MANY_CONNECTIONS,
            "this connection is above --max-connections, so only probes are answered on it: connect again later, or raise \
             the maximum",
        )
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = if error.is_over_capacity() {
            COST_ABOVE_LIMIT
        } else if error.is_config() {
            INVALID_REQUEST
        } else if error.is_shut_down() {
            STOPPING
        } else if error.is_unavailable() {
            REDIS_UNAVAILABLE
        } else if error.is_corrupt_state() {
            CORRUPT_STATE
        } else {
            INTERNAL
        };
        let detail = in_terms_of_the_api(error.to_string());
        let (gate, cost_and_limit) = (error.gate().map(Into::into), error.cost_and_limit());
        Self { gate, cost_and_limit, ..Self::of_kind(kind, detail) }
    }
}

impl<E: std::fmt::Display> From<BodyError<E>> for Problem {
    fn from(error: BodyError<E>) -> Self {
        let kind = match error {
            BodyError::TimedOut => BODY_TIMEOUT,
            BodyError::TooLarge(_) => BODY_TOO_LARGE,
            BodyError::NoMemory => TOO_MANY_UNFINISHED,
            BodyError::Unreadable(_) => MALFORMED_BODY,
        };
        Self::of_kind(kind, error.to_string())
    }
}

impl From<NotReleased> for Problem {
    fn from(reason: NotReleased) -> Self {
        match reason {
            NotReleased::Malformed => {
                Self::invalid("`permit` is not an id: pass the `id` of the permit, unchanged")
            }
            NotReleased::Ended => Self::of_kind(
                UNKNOWN_PERMIT,
                "the permit was released before, has expired, or ended with the server that gave it: there is nothing to do",
            ),
            NotReleased::NotRecorded(error) => error.into(),
        }
    }
}

//! The OpenAPI document, from the types of requests and responses.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use std::sync::LazyLock;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::problem::ProblemBody;
use super::{checks, in_flight, reservations};

/// The statuses of problems of every endpoint.
const PROBLEMS: [(&str, &str); 7] = [
    ("400", "The request has a mistake: see `detail`."),
    ("404", "The gate or the permit is not known."),
    ("408", "The body did not arrive within 5 s."),
    ("413", "The body is too large."),
    ("415", "The body is not declared as JSON."),
    ("500", "The limiter failed."),
    (
        "503",
        "Redis is unavailable and the failure policy is `error`, or the server cannot take the request now.",
    ),
];

/// The API's description of itself.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "tidegate",
        description = "Rate limits that a whole fleet shares.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/", description = "This server.")),
    tags(
        (name = "checks", description = "Rates: decide now."),
        (name = "reservations", description = "Units whose final number is known later."),
        (name = "in flight", description = "Operations that run at the same time."),
        (name = "description", description = "The API itself.")),
    paths(
        checks::check, checks::peek, checks::check_all,
        reservations::reserve, reservations::commit, reservations::cancel,
        in_flight::acquire, in_flight::release,
        document),
    components(schemas(ProblemBody)),
    modifiers(&Problems)
)]
struct Document;

/// Adds the problems to each endpoint that takes a request.
struct Problems;

impl Modify for Problems {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let operations = openapi.paths.paths.values_mut().filter_map(|path| path.post.as_mut());
        operations.for_each(add_problems);
    }
}

fn add_problems(operation: &mut Operation) {
    for (status, description) in PROBLEMS {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemBody"))).build();
        let response = ResponseBuilder::new().description(description);
        let response = response.content("application/problem+json", content).build();
        operation.responses.responses.insert(status.to_owned(), response.into());
    }
}

static TEXT: LazyLock<Bytes> = LazyLock::new(|| {
    // Its types always serialize.
    Document::openapi().to_json().unwrap_or_default().into()
});

/// Returns this document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "description", operation_id = "openapi",
    responses((status = 200, description = "An OpenAPI 3.1 document.", body = serde_json::Value)))]
pub(super) async fn document() -> Response {
    let mut response = TEXT.clone().into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

//! The OpenAPI document, from the types of requests and responses.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use std::sync::LazyLock;
use tidegate::algorithm::NAMES;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::{checks, in_flight, reservations};
use crate::problem::ProblemBody;

/// The statuses of problems of every endpoint.
const PROBLEMS: [(&str, &str); 9] = [
    ("400", "The request has a mistake: see `detail`."),
    ("403", "A page in a browser has sent the request."),
    ("404", "The gate or the permit is not known."),
    ("408", "The body did not arrive within 5 s."),
    ("413", "The body is too large."),
    ("415", "The body is not declared as JSON."),
    ("421", "`Host` names another machine."),
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

/// The values of `unit` in a quota.
const UNITS: &[&str] = &["second", "minute", "hour", "day", "week", "month", "year"];

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

/// Adds what the types cannot express: which fields belong together, and the values of texts.
fn add_forms(schemas: &mut Value) {
    const RULES: &[&str] = &["domain", "descriptors"];
    let mut add = |name: &str, forms: &[(&[&str], &[&str])]| {
        let forms: Vec<Value> = forms.iter().map(|(fields, others)| form(fields, others)).collect();
        schemas[name]["oneOf"] = json!(forms);
    };
    add(
        "CheckRequest",
        &[(RULES, &["gate", "key", "cost", "max_delay_us", "quota"]), (&["gate", "key"], RULES)],
    );
    for name in ["CheckAllRequest", "ReserveRequest", "AcquireRequest"] {
        add(name, &[(RULES, &["checks"]), (&["checks"], RULES)]);
    }
    add(
        "QuotaSpec",
        &[
            (&["requests_per_unit", "unit"], &["every", "zone", "in_flight"]),
            (&["requests_per_unit", "every"], &["unit", "in_flight"]),
            (&["in_flight"], &["requests_per_unit", "unit", "every", "zone", "algorithm", "burst"]),
        ],
    );
    let algorithms: Vec<_> = NAMES.into_iter().filter(|name| *name != "in_flight").collect();
    for (field, choices) in [("unit", UNITS), ("algorithm", &algorithms)] {
        let choices = choices.iter().map(|choice| json!(choice)).chain([Value::Null]);
        schemas["QuotaSpec"]["properties"][field]["enum"] = choices.collect();
    }
}

/// Returns a form of a request that has these fields, and none of the others. A field that is `null` is absent.
fn form(fields: &[&str], others: &[&str]) -> Value {
    let present = fields.iter().map(|field| ((*field).to_owned(), json!({ "not": { "type": "null" } })));
    let absent = others.iter().map(|field| ((*field).to_owned(), json!({ "type": "null" })));
    json!({ "required": fields, "properties": present.chain(absent).collect::<serde_json::Map<_, _>>() })
}

static TEXT: LazyLock<Bytes> = LazyLock::new(|| {
    // Its types always serialize.
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    add_forms(&mut document["components"]["schemas"]);
    document.to_string().into()
});

/// Returns this document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "description", operation_id = "openapi",
    responses((status = 200, description = "An OpenAPI 3.1 document.", body = serde_json::Value)))]
pub(super) async fn document() -> Response {
    let mut response = TEXT.clone().into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

//! The JSON API of the admin port: changes, and the audit log.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::access::{Json, Operator, Viewer};
use super::audit::audit_json;
use super::change::{self, ChangeFields, Verb};
use super::problem::Problem;
use super::state::AdminState;

/// The newest entries of the audit log that are shown.
const SHOWN_ENTRIES: usize = 200;

/// `POST /api/block`, and so on for each [`Verb`]; `GET /api/audit`.
pub(super) fn routes() -> Router<AdminState> {
    let router = Router::new().route("/api/audit", get(audit));
    Verb::ALL.into_iter().fold(router, |router, verb| {
        let handler = async move |State(state): State<AdminState>,
                                  Operator(identity): Operator,
                                  headers: HeaderMap,
                                  Json(fields): Json<ChangeFields>| {
            match change::apply(&state, &identity, verb, fields).await {
                Ok(changed) => json_response(&json!({
                    "result": changed.effect.result,
                    "changed": changed.effect.has_changed,
                    "audit_error": changed.audit_error.map(|error| error.to_string()),
                })),
                Err(problem) => problem.respond(&headers),
            }
        };
        router.route(&format!("/api/{}", verb.as_str()), post(handler))
    })
}

async fn audit(State(state): State<AdminState>, Viewer(_): Viewer, headers: HeaderMap) -> Response {
    match state.audit.entries(SHOWN_ENTRIES).await {
        Ok(entries) => {
            json_response(&json!({ "entries": entries.iter().map(audit_json).collect::<Vec<_>>() }))
        }
        Err(error) => {
            Problem::new(http::StatusCode::SERVICE_UNAVAILABLE, error.to_string()).respond(&headers)
        }
    }
}

pub(super) fn json_response(value: &Value) -> Response {
    let mut response = (value.to_string() + "\n").into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

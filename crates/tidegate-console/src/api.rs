//! The JSON API of the admin port: changes, and the audit log.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::StatusCode;
use serde_json::json;
use tidegate_server::pages::{Json, Operator, Problem, Viewer, json_response};

use crate::audit::audit_json;
use crate::changes::{AuditedChanges, ChangeFields, Verb};

/// The newest entries of the audit log that are shown.
const SHOWN_ENTRIES: usize = 200;

/// `POST /api/block`, and so on for each [`Verb`]; `GET /api/audit`.
pub(crate) fn routes(changes: AuditedChanges) -> Router {
    let router = Router::new().route("/api/audit", get(audit));
    let router = Verb::ALL.into_iter().fold(router, |router, verb| {
        let handler = async move |State(changes): State<AuditedChanges>,
                                  Operator(identity): Operator,
                                  Json(fields): Json<ChangeFields>| {
            let changed = changes.apply(&identity, verb, fields).await?;
            Ok::<_, Problem>(json_response(&json!({
                "result": changed.effect.result,
                "changed": changed.effect.has_changed,
                "audit_error": changed.audit_error.map(|error| error.to_string()),
            })))
        };
        router.route(&format!("/api/{}", verb.as_str()), post(handler))
    });
    router.with_state(changes)
}

async fn audit(State(changes): State<AuditedChanges>, Viewer(_): Viewer) -> Result<Response, Problem> {
    let entries = changes.log.entries(SHOWN_ENTRIES).await;
    let entries =
        entries.map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    Ok(json_response(&json!({ "entries": entries.iter().map(audit_json).collect::<Vec<_>>() })))
}

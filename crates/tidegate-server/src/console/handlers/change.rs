//! The handlers of changes: the form, its confirmation, and the change.

use std::collections::HashMap;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::{HeaderMap, StatusCode};

use super::{Common, PageParameters, page, page_with};
use crate::admin::{AdminState, Changed, Form, Operator, Problem, apply, describe};
use crate::console::change::{ChangeForm, ChangePage, ChangedPage, ConfirmPage, verb};
use crate::console::history;
use crate::console::readings::Console;

/// Returns how many instances will follow a change.
async fn followers(console: &Console) -> String {
    match console.inspector() {
        Ok(inspector) => history::followers(inspector).await,
        Err(_) => "Only this process follows it: it counts in its own memory.".to_owned(),
    }
}

pub(in crate::console) async fn change_form(
    State(state): State<AdminState>,
    Operator(identity): Operator,
    headers: HeaderMap,
    Query(values): PageParameters,
) -> Response {
    let values = ChangeForm::new(values);
    let Some(verb) = verb(values.get("verb")) else {
        return Problem::new(StatusCode::NOT_FOUND, "there is no such change").respond(&headers);
    };
    let common = Common::new(&state.console, &identity).await;
    page(&ChangePage::new(common.frame, verb, values, None, common.catalog.first_names()))
}

pub(in crate::console) async fn change(
    State(state): State<AdminState>,
    Operator(identity): Operator,
    headers: HeaderMap,
    Form(values): Form<HashMap<String, String>>,
) -> Response {
    let mut values = ChangeForm::new(values);
    let Some(verb) = verb(values.get("verb")) else {
        return Problem::new(StatusCode::NOT_FOUND, "there is no such change").respond(&headers);
    };
    if let Ok(gate) = state.changed_gate(values.get("gate").trim()) {
        values.name_gate(&gate.name);
    }
    let console = &state.console;
    let Common { frame, catalog, .. } = Common::new(console, &identity).await;
    let failed = |frame, problem: Problem| {
        let form = ChangePage::new(frame, verb, values.clone(), Some(problem.detail), catalog.first_names());
        page_with(problem.status, &form)
    };
    let fields = values.fields();
    if values.get("confirmed") != "yes" {
        return match describe(&state, verb, &fields).await {
            Ok(detail) => {
                let followers = followers(console).await;
                page(&ConfirmPage::new(frame, verb, &values, &detail, followers))
            }
            Err(problem) => failed(frame, problem),
        };
    }
    let next = values.page_after();
    match apply(&state, &identity, verb, fields).await {
        Ok(Changed { effect, audit_error: None }) if effect.has_changed && effect.incomplete.is_none() => {
            Redirect::to(&next).into_response()
        }
        // The next page would not say what is missing.
        Ok(Changed { effect, audit_error }) => {
            let done = if effect.has_changed { "Done" } else { "Nothing has changed" };
            let error = audit_error.map(|error| format!(" The audit log has no entry of it: {error}."));
            let message = format!("{done}: {}.{}", effect.result, error.unwrap_or_default());
            page(&ChangedPage::new(frame, verb, message, next))
        }
        Err(problem) => failed(frame, problem),
    }
}

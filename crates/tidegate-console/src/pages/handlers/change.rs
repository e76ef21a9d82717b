//! The handlers of changes: the form, its confirmation, and the change.

use std::collections::HashMap;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use tidegate_server::pages::{Form, Operator, Problem};

use super::{Common, PageParameters, page, page_with};
use crate::changes::Changed;
use crate::pages::PagesState;
use crate::pages::change::{ChangeForm, ChangePage, ChangedPage, ConfirmPage, verb};
use crate::pages::history;
use crate::pages::readings::SharedReadings;

/// Returns how many instances will follow a change.
async fn followers(readings: &SharedReadings) -> String {
    match readings.inspector() {
        Ok(inspector) => history::followers(inspector).await,
        Err(_) => "Only this process follows it: it counts in its own memory.".to_owned(),
    }
}

pub(in crate::pages) async fn change_form(
    State(state): State<PagesState>,
    Operator(identity): Operator,
    Query(values): PageParameters,
) -> Response {
    let values = ChangeForm::new(values);
    let Some(verb) = verb(values.get("verb")) else {
        return Problem::new(StatusCode::NOT_FOUND, "there is no such change").into_response();
    };
    let common = Common::new(&state.readings, &identity).await;
    let Common { frame, catalog, .. } = common;
    page(&ChangePage::new(frame, verb, values, None, catalog.first_names()), &catalog)
}

pub(in crate::pages) async fn change(
    State(state): State<PagesState>,
    Operator(identity): Operator,
    Form(values): Form<HashMap<String, String>>,
) -> Response {
    let mut values = ChangeForm::new(values);
    let Some(verb) = verb(values.get("verb")) else {
        return Problem::new(StatusCode::NOT_FOUND, "there is no such change").into_response();
    };
    if let Ok(gate) = state.changes.gate(values.get("gate").trim()) {
        values.name_gate(gate);
    }
    let readings = &state.readings;
    let Common { frame, catalog, .. } = Common::new(readings, &identity).await;
    let failed = |frame, problem: Problem| {
        let form = ChangePage::new(frame, verb, values.clone(), Some(problem.detail), catalog.first_names());
        page_with(problem.status, &form, &catalog)
    };
    let fields = values.fields();
    if values.get("confirmed") != "yes" {
        return match state.changes.describe(verb, &fields).await {
            Ok(detail) => {
                let followers = followers(readings).await;
                page(&ConfirmPage::new(frame, verb, &values, &detail, followers), &catalog)
            }
            Err(problem) => failed(frame, problem),
        };
    }
    let next = values.page_after();
    match state.changes.apply(&identity, verb, fields).await {
        Ok(Changed { effect, audit_error: None }) if effect.has_changed && effect.incomplete.is_none() => {
            Redirect::to(&next).into_response()
        }
        // The next page would not say what is missing.
        Ok(Changed { effect, audit_error }) => {
            let done = if effect.has_changed { "Done" } else { "Nothing has changed" };
            let error = audit_error.map(|error| format!(" The audit log has no entry of it: {error}."));
            let message = format!("{done}: {}.{}", effect.result, error.unwrap_or_default());
            page(&ChangedPage::new(frame, verb, message, next), &catalog)
        }
        Err(problem) => failed(frame, problem),
    }
}

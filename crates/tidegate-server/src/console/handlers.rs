//! The handlers of the pages: they read, make the page, and render it.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::{HeaderMap, StatusCode};
use tidegate::{Error, Override};

use super::catalog::Catalog;
use super::change::{ChangePage, ChangedPage, ConfirmPage, Values, verb};
use super::explain::{ExplainPage, Question};
use super::frame::{Frame, Who};
use super::gate::GatePage;
use super::gates::Gates;
use super::health::{HealthPage, firing};
use super::history::{self, Entry};
use super::hour::Hour;
use super::key_search::KeySearch;
use super::keys::{Event, Key, KeyPage, Keys, KeysLive, Lists};
use super::overrides::Overrides;
use super::overview::{Live, Overview, OverviewLive, Readings};
use super::readings::Console;
use super::rules::RulesPage;
use crate::admin::{
    AdminState, Changed, Form, Identity, Operator, Problem, Role, Viewer, apply, csrf_token, describe,
};

/// The parameters of a page.
type Parameters = Query<HashMap<String, String>>;

/// The maximum length of a parameter in bytes. A longer one counts as absent.
const MAX_PARAMETER_BYTES: usize = 2_048;
/// The entries of the audit log that are searched for a key.
const MAX_AUDIT_ENTRIES: usize = 1_000;
/// The changes of a key that are shown.
const MAX_EVENTS: usize = 50;

fn text<'p>(parameters: &'p Parameters, name: &str) -> &'p str {
    let found = parameters.0.get(name).filter(|value| value.len() <= MAX_PARAMETER_BYTES);
    found.map_or("", String::as_str)
}

fn number(parameters: &Parameters, name: &str) -> usize {
    text(parameters, name).parse().unwrap_or(0)
}

/// The readings of most pages.
struct Common {
    hour: Result<Arc<Hour>, String>,
    overrides: Result<Vec<Override>, Error>,
    catalog: Catalog,
    frame: Frame,
}

impl Common {
    async fn new(console: &Console, identity: &Identity) -> Self {
        let (hour, overrides) = tokio::join!(console.hour(), console.overrides());
        let firing = firing(&console.known(&hour, &overrides));
        let frame = Frame { firing, ..frame(console, identity) };
        Self { hour, overrides, catalog: Catalog::new(&console.service().rules()), frame }
    }

    fn hour(&self) -> Result<&Hour, &str> {
        self.hour.as_deref().map_err(|why| &**why)
    }

    fn overrides(&self) -> &[Override] {
        self.overrides.as_deref().unwrap_or_default()
    }
}

/// Returns a frame without a title.
fn frame(console: &Console, identity: &Identity) -> Frame {
    let csrf = csrf_token(identity);
    Frame {
        namespace: console.namespace().to_owned(),
        who: Some(Who {
            name: identity.name.clone(),
            role: identity.role.as_str(),
            csrf: (!csrf.is_empty()).then(|| csrf.to_owned()),
            has_session: identity.has_session,
            is_operator: identity.role == Role::Operator,
        }),
        ..Frame::default()
    }
}

fn page(template: &impl Template) -> Response {
    page_with(StatusCode::OK, template)
}

fn page_with(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            let problem =
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot render the page: {error}"));
            problem.respond(&HeaderMap::new())
        }
    }
}

async fn live(console: &Console, common: &Common) -> Live {
    let redis = console.load().await;
    Live::new(Readings {
        hour: common.hour(),
        overrides: common.overrides(),
        catalog: &common.catalog,
        redis,
    })
}

pub(super) async fn overview(State(state): State<AdminState>, Viewer(identity): Viewer) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let live = live(&state.console, &common).await;
    page(&Overview::new(common.frame, live))
}

pub(super) async fn overview_live(State(state): State<AdminState>, Viewer(identity): Viewer) -> Response {
    let common = Common::new(&state.console, &identity).await;
    page(&OverviewLive { live: live(&state.console, &common).await })
}

pub(super) async fn gates(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    parameters: Parameters,
) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let (search, at) = (text(&parameters, "q"), number(&parameters, "page"));
    page(&Gates::new(common.frame.clone(), common.hour(), common.overrides(), &common.catalog, search, at))
}

pub(super) async fn gate(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    parameters: Parameters,
) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let (name, rules) = (text(&parameters, "name"), state.console.service().rules());
    let gate =
        GatePage::new(common.frame.clone(), name, &rules, common.hour(), common.overrides(), &common.catalog);
    let status = if gate.is_known() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    page_with(status, &gate)
}

async fn lists(console: &Console, common: &Common, gate: &str) -> Result<Lists, String> {
    let ranked = console.top((!gate.is_empty()).then_some(gate), &common.catalog).await?;
    Ok(Lists::new(&ranked, common.overrides(), &common.catalog))
}

pub(super) async fn keys(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    parameters: Parameters,
) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let gate = text(&parameters, "gate");
    let lists = lists(&state.console, &common, gate).await;
    page(&Keys::new(common.frame, gate, lists))
}

pub(super) async fn keys_live(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    parameters: Parameters,
) -> Response {
    let common = Common::new(&state.console, &identity).await;
    page(&KeysLive { lists: lists(&state.console, &common, text(&parameters, "gate")).await })
}

/// Returns the key that the parameters name: by its form in Redis, or by its text.
fn key_of(console: &Console, key: &str, written: &str) -> Option<Key> {
    if !written.is_empty() {
        return Key::of_written(written);
    }
    let forms =
        console.inspector().map_or_else(|_| Vec::new(), |inspector| inspector.stored_forms(key.as_bytes()));
    (!key.is_empty()).then(|| Key::of_text(key, forms))
}

pub(super) async fn key(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    headers: HeaderMap,
    parameters: Parameters,
) -> Response {
    let problem = |status, why: String| Problem::new(status, why).respond(&headers);
    let console = &state.console;
    let (text_of_key, stored) = (text(&parameters, "key"), !text(&parameters, "stored").is_empty());
    let written = if stored { text_of_key } else { text(&parameters, "written") };
    let Some(key) = key_of(console, text_of_key, written) else {
        let why =
            "no key: a stored form has only printable characters, others are % and two hexadecimal digits";
        return problem(StatusCode::BAD_REQUEST, why.to_owned());
    };
    let inspector = match console.inspector() {
        Ok(inspector) => inspector,
        Err(why) => return problem(StatusCode::NOT_FOUND, why),
    };
    let common = Common::new(console, &identity).await;
    let rules = console.service().rules();
    let search = KeySearch::new(inspector, &rules, key.bytes.as_deref(), &key.written).await;
    let search = match search {
        Ok(search) => search,
        Err(error) => {
            return problem(StatusCode::SERVICE_UNAVAILABLE, format!("the key cannot be read: {error}"));
        }
    };
    let history = history_of(&state, &key).await;
    page(&KeyPage::new(common.frame.clone(), &key, &search, common.overrides(), history, &common.catalog))
}

/// Returns the changes of a key in the audit log.
async fn history_of(state: &AdminState, key: &Key) -> Result<Vec<Event>, String> {
    let entries = history::audit_entries(state, MAX_AUDIT_ENTRIES).await?;
    let of_key = |entry: &&Entry| key.written.contains(&entry.key);
    Ok(entries.iter().filter(of_key).take(MAX_EVENTS).map(Entry::event).collect())
}

pub(super) async fn overrides(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    parameters: Parameters,
) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let overrides =
        common.overrides.as_deref().map_err(|error| format!("The overrides cannot be read: {error}"));
    let (gate, at) = (text(&parameters, "gate"), number(&parameters, "page"));
    page(&Overrides::new(common.frame.clone(), overrides, gate, at))
}

pub(super) async fn rules(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    parameters: Parameters,
) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let (rules, reload) =
        (state.console.service().rules(), state.console.service().reloading().last_reload());
    let (file, line) = (number(&parameters, "file"), number(&parameters, "line"));
    page(&RulesPage::new(common.frame, &rules, reload.as_deref(), file, line))
}

pub(super) async fn explain(
    State(state): State<AdminState>,
    Viewer(identity): Viewer,
    parameters: Parameters,
) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let [domain, descriptor, request, headers, ip] =
        ["domain", "descriptor", "request", "headers", "ip"].map(|name| text(&parameters, name).to_owned());
    let question = Question { domain, descriptor, request, headers, ip };
    page(&ExplainPage::new(common.frame, &state.console.service().rules(), question))
}

pub(super) async fn health(State(state): State<AdminState>, Viewer(identity): Viewer) -> Response {
    let common = Common::new(&state.console, &identity).await;
    let own = state.console.own_health().await;
    let known = state.console.known(&common.hour, &common.overrides);
    page(&HealthPage::new(common.frame, &known, own))
}

/// Returns how many instances will follow a change.
async fn followers(console: &Console) -> String {
    match console.inspector() {
        Ok(inspector) => history::followers(inspector).await,
        Err(_) => "Only this process follows it: it counts in its own memory.".to_owned(),
    }
}

pub(super) async fn change_form(
    State(state): State<AdminState>,
    Operator(identity): Operator,
    headers: HeaderMap,
    Query(values): Parameters,
) -> Response {
    let values = Values(values);
    let Some(verb) = verb(values.get("verb")) else {
        return Problem::new(StatusCode::NOT_FOUND, "there is no such change").respond(&headers);
    };
    let common = Common::new(&state.console, &identity).await;
    page(&ChangePage::new(common.frame, verb, values, None))
}

pub(super) async fn change(
    State(state): State<AdminState>,
    Operator(identity): Operator,
    headers: HeaderMap,
    Form(values): Form<HashMap<String, String>>,
) -> Response {
    let values = Values(values);
    let Some(verb) = verb(values.get("verb")) else {
        return Problem::new(StatusCode::NOT_FOUND, "there is no such change").respond(&headers);
    };
    let console = &state.console;
    let frame = Common::new(console, &identity).await.frame;
    let failed = |frame, problem: Problem| {
        let form = ChangePage::new(frame, verb, values.clone(), Some(problem.detail));
        page_with(problem.status, &form)
    };
    if values.get("confirmed") != "yes" {
        return match describe(&state, verb, &values.fields()) {
            Ok(detail) => {
                let followers = followers(console).await;
                page(&ConfirmPage::new(frame, verb, &values, &detail, followers))
            }
            Err(problem) => failed(frame, problem),
        };
    }
    let key = values.get("key");
    let key = key_of(console, key, if values.get("stored").is_empty() { "" } else { key });
    let next = values.page_after(key.as_ref());
    match apply(&state, &identity, verb, values.fields()).await {
        Ok(Changed { has_effect: true, audit_error: None, .. }) => Redirect::to(&next).into_response(),
        Ok(Changed { result, has_effect, audit_error }) => {
            let done = if has_effect { "Done" } else { "Nothing has changed" };
            let error = audit_error.map(|error| format!(" The audit log has no entry of it: {error}."));
            let message = format!("{done}: {result}.{}", error.unwrap_or_default());
            page(&ChangedPage::new(frame, verb, message, next))
        }
        Err(problem) => failed(frame, problem),
    }
}

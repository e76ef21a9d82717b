//! The handlers of the pages: they read, make the page, and render it.

pub(super) mod change;

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::{Html, IntoResponse, Response};
use http::StatusCode;
use tidegate::admin::{AuditEntry, Found, RegionFigures};
use tidegate::{Error, Override};
use tidegate_server::Role;
use tidegate_server::pages::{Identity, Problem, Viewer};

use super::PagesState;
use super::catalog::Catalog;
use super::explain::{ExplainPage, Question};
use super::frame::{Frame, Who};
use super::gate::GatePage;
use super::gates::Gates;
use super::health::{HealthPage, firing};
use super::history;
use super::hour::Hour;
use super::key_search::KeySearch;
use super::keys::{KeyPage, Keys, KeysLive, Lists, SearchedKey};
use super::overrides::Overrides;
use super::overview::{Live, Overview, OverviewLive, Readings};
use super::readings::{SharedReadings, has_answered};
use super::rules::RulesPage;
use super::stored_key;

/// The parameters of a page.
type PageParameters = Query<HashMap<String, String>>;

/// The maximum length of a parameter in bytes. A longer one counts as absent.
const MAX_PARAMETER_BYTES: usize = 2_048;

fn text<'p>(parameters: &'p PageParameters, name: &str) -> &'p str {
    let found = parameters.0.get(name).filter(|value| value.len() <= MAX_PARAMETER_BYTES);
    found.map_or("", String::as_str)
}

fn number(parameters: &PageParameters, name: &str) -> usize {
    text(parameters, name).parse().unwrap_or(0)
}

/// The readings of most pages.
struct Common {
    hour: Result<Arc<Hour>, String>,
    overrides: Result<Vec<Override>, Error>,
    regions: Result<Option<RegionFigures>, String>,
    catalog: Catalog,
    frame: Frame,
}

impl Common {
    async fn new(readings: &SharedReadings, identity: &Identity) -> Self {
        let (hour, overrides, regions) =
            tokio::join!(readings.hour(), readings.overrides(), readings.regions());
        let catalog = Catalog::new(&readings.service().rules());
        let firing = firing(&readings.condition_inputs(&hour, &overrides, &regions, &catalog));
        let frame = Frame { firing, ..frame(readings, identity) };
        Self { hour, overrides, regions, catalog, frame }
    }

    fn hour(&self) -> Result<&Hour, &str> {
        self.hour.as_deref().map_err(|why| &**why)
    }

    fn overrides(&self) -> &[Override] {
        self.overrides.as_deref().unwrap_or_default()
    }
}

/// Returns a frame without a title.
fn frame(readings: &SharedReadings, identity: &Identity) -> Frame {
    Frame {
        namespace: readings.namespace().to_owned(),
        is_in_memory: readings.is_in_memory(),
        who: Some(Who {
            name: identity.name.clone(),
            role: identity.role.as_str(),
            csrf: identity.csrf().map(str::to_owned),
            has_session: identity.has_session,
            is_operator: identity.role == Role::Operator,
        }),
        ..Frame::default()
    }
}

fn page(template: &impl Template, catalog: &Catalog) -> Response {
    page_with(StatusCode::OK, template, catalog)
}

fn page_with(status: StatusCode, template: &impl Template, catalog: &Catalog) -> Response {
    match template.render_with_values(catalog) {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            let text = format!("cannot render the page: {error}");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

async fn live(readings: &SharedReadings, common: &Common) -> Live {
    let redis = readings.load().await;
    Live::new(Readings {
        hour: common.hour(),
        is_in_memory: readings.is_in_memory(),
        overrides: common.overrides.as_deref().ok(),
        catalog: &common.catalog,
        has_answered: has_answered(&common.overrides),
        redis,
    })
}

pub(super) async fn overview(State(state): State<PagesState>, Viewer(identity): Viewer) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let live = live(&state.readings, &common).await;
    page(&Overview::new(common.frame, live), &common.catalog)
}

pub(super) async fn overview_live(State(state): State<PagesState>, Viewer(identity): Viewer) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    page(&OverviewLive { live: live(&state.readings, &common).await }, &common.catalog)
}

pub(super) async fn gates(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let (search, at) = (text(&parameters, "q"), number(&parameters, "page"));
    let Common { frame, catalog, .. } = &common;
    let gates = Gates::new(frame.clone(), common.hour(), common.overrides(), catalog, search, at);
    page(&gates, catalog)
}

pub(super) async fn gate(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let (name, rules) = (text(&parameters, "name"), state.readings.service().rules());
    let log = log_of(&state, common.overrides()).await;
    let Common { frame, catalog, .. } = &common;
    let gate = GatePage::new(frame.clone(), name, &rules, common.hour(), common.overrides(), &log, catalog);
    let status = if gate.is_known() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    page_with(status, &gate, catalog)
}

async fn lists(state: &PagesState, common: &Common, gate: &str) -> Result<Lists, String> {
    let readings = &state.readings;
    let ranked =
        readings.top((!gate.is_empty()).then_some(gate), common.overrides(), &common.catalog).await?;
    let is_blocked = |found: &Found| found.usage.as_ref().is_ok_and(|usage| usage.blocked_for.is_some());
    let log = match ranked.denied.iter().chain(&ranked.most_used).any(is_blocked) {
        true => history::audit_entries(&state.changes.log).await.ok(),
        false => None,
    };
    Ok(Lists::new(&ranked, common.overrides(), log.as_deref(), &common.catalog))
}

pub(super) async fn keys(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let gate = text(&parameters, "gate");
    let lists = lists(&state, &common, gate).await;
    page(&Keys::new(common.frame, gate, lists), &common.catalog)
}

pub(super) async fn keys_live(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    page(&KeysLive { lists: lists(&state, &common, text(&parameters, "gate")).await }, &common.catalog)
}

/// Returns the key that the parameters name: by a stored form, or by its text. A stored form can be empty; a text cannot,
/// because an empty field was not filled in.
fn key_of(readings: &SharedReadings, parameters: &PageParameters) -> Option<SearchedKey> {
    let key = text(parameters, "key");
    let form = match (text(parameters, "stored").is_empty(), parameters.0.contains_key("written")) {
        (false, _) => key.to_owned(),
        (true, true) => text(parameters, "written").to_owned(),
        (true, false) if key.is_empty() => return None,
        (true, false) => stored_key::encoded(key.as_bytes()),
    };
    SearchedKey::of_stored(&form, |key| readings.stored_forms(key))
}

pub(super) async fn key(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let problem = |status, why: String| Problem::new(status, why).into_response();
    let readings = &state.readings;
    let Some(key) = key_of(readings, &parameters) else {
        let why =
            "no key: a stored form has only printable characters, others are % and two hexadecimal digits";
        return problem(StatusCode::BAD_REQUEST, why.to_owned());
    };
    let inspector = match readings.inspector() {
        Ok(inspector) => inspector,
        Err(why) => return problem(StatusCode::NOT_FOUND, why),
    };
    let common = Common::new(readings, &identity).await;
    let rules = readings.service().rules();
    let search = KeySearch::new(inspector, &rules, key.bytes.as_deref(), &key.written).await;
    let search = match search {
        Ok(search) => search,
        Err(error) => {
            return problem(StatusCode::SERVICE_UNAVAILABLE, format!("the key cannot be read: {error}"));
        }
    };
    let history = history::audit_entries(&state.changes.log).await;
    let Common { frame, catalog, .. } = &common;
    page(&KeyPage::new(frame.clone(), &key, &search, common.overrides(), history, catalog), catalog)
}

/// Returns the audit log for these overrides: empty without overrides, and if it cannot be read.
async fn log_of(state: &PagesState, overrides: &[Override]) -> Vec<AuditEntry> {
    match overrides.is_empty() {
        true => Vec::new(),
        false => history::audit_entries(&state.changes.log).await.unwrap_or_default(),
    }
}

pub(super) async fn overrides(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let overrides =
        common.overrides.as_deref().map_err(|error| format!("The overrides cannot be read: {error}"));
    let (gate, at) = (text(&parameters, "gate"), number(&parameters, "page"));
    let log = log_of(&state, common.overrides()).await;
    let Common { frame, catalog, .. } = &common;
    page(&Overrides::new(frame.clone(), overrides, &log, catalog.first_names(), gate, at), catalog)
}

pub(super) async fn rules(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let (rules, reload) =
        (state.readings.service().rules(), state.readings.service().reloading().last_reload());
    let (file, line) = (number(&parameters, "file"), number(&parameters, "line"));
    page(&RulesPage::new(common.frame, &rules, reload.as_deref(), file, line), &common.catalog)
}

pub(super) async fn explain(
    State(state): State<PagesState>,
    Viewer(identity): Viewer,
    parameters: PageParameters,
) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let [domain, descriptor, request, headers, ip] =
        ["domain", "descriptor", "request", "headers", "ip"].map(|name| text(&parameters, name).to_owned());
    let question = Question { domain, descriptor, request, headers, ip };
    let explain = ExplainPage::new(common.frame, &state.readings.service().rules(), question);
    page(&explain, &common.catalog)
}

pub(super) async fn health(State(state): State<PagesState>, Viewer(identity): Viewer) -> Response {
    let common = Common::new(&state.readings, &identity).await;
    let own = state.readings.own_health().await;
    let Common { hour, overrides, regions, catalog, .. } = &common;
    let inputs = state.readings.condition_inputs(hour, overrides, regions, catalog);
    page(&HealthPage::new(common.frame.clone(), &inputs, own), &common.catalog)
}

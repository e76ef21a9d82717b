//! The pages that the server renders, for operators and browsers.
//!
//! Each page is a module with a template of the same name: a plain struct, made from readings of the fleet
//! ([`figures`], [`top`]) without I/O. [`handlers`] reads, and calls it. The templates escape HTML; text in them also
//! passes the filter `visible`, and values in links the filter `urlencode_strict`.

mod catalog;
mod change;
mod chart;
mod display;
mod explain;
mod figures;
mod filters;
mod frame;
mod gate;
mod gates;
mod handlers;
mod health;
mod history;
mod hour;
mod key_search;
mod keys;
mod overrides;
mod overview;
mod plain;
mod readings;
mod rules;
mod runbook;
mod states;
mod stored_key;
mod top;

use axum::Router;
use axum::routing::get;
use tidegate::admin::Inspector;

pub(crate) use self::plain::{error_page, login_page};
use self::readings::SharedReadings;
use crate::changes::AuditedChanges;

/// The state of the handlers. Clones share it.
#[derive(Clone, Debug)]
struct PagesState {
    changes: AuditedChanges,
    readings: SharedReadings,
}

/// Returns the pages of the console. Without `inspector`, the limiter has no Redis: its keys and figures are in memory.
pub(crate) fn routes(changes: AuditedChanges, inspector: Option<Inspector>) -> Router {
    let readings = SharedReadings::new(changes.service.clone(), inspector);
    Router::new()
        .route("/", get(handlers::overview))
        .route("/live", get(handlers::overview_live))
        .route("/gates", get(handlers::gates))
        .route("/gate", get(handlers::gate))
        .route("/keys", get(handlers::keys))
        .route("/keys/live", get(handlers::keys_live))
        .route("/key", get(handlers::key))
        .route("/overrides", get(handlers::overrides))
        .route("/rules", get(handlers::rules))
        .route("/explain", get(handlers::explain))
        .route("/health", get(handlers::health))
        .route("/change", get(handlers::change::change_form).post(handlers::change::change))
        .route("/assets/console.css", get(plain::style))
        .route("/assets/console.js", get(plain::script))
        .route("/assets/icon.svg", get(plain::icon))
        .with_state(PagesState { changes, readings })
}

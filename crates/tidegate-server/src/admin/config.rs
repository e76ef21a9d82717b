//! `/config`: the active rules, the files they are from, the addresses of the ports, and the settings of the program
//! without secrets.

use std::fmt::Write;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidegate::admin::Inspector;
use tidegate_rules::{Limit, Rule};

use super::access::Viewer;
use super::pages::json_response;
use super::state::AdminState;
use crate::problem::Problem;

#[derive(Deserialize)]
pub(super) struct Parameters {
    /// Without it, the header `Accept` decides.
    format: Option<Format>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Text,
}

pub(super) async fn show(
    State(state): State<AdminState>,
    Viewer(_): Viewer,
    parameters: Result<Query<Parameters>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let Ok(Query(Parameters { format })) = parameters else {
        let text = "`format` is `json` or `text`, and given once at most";
        return Problem::new(StatusCode::BAD_REQUEST, text).into_response();
    };
    let config = config(&state);
    let accepted = || headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    let is_text = match format {
        Some(format) => format == Format::Text,
        None => accepted().contains("text/plain"),
    };
    if !is_text {
        return json_response(&config);
    }
    let mut response = text(&config).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn config(state: &AdminState) -> Value {
    let limits = state.service.rules();
    let inspector = Inspector::new(limits.limiter()).ok();
    let rules: Vec<Value> = limits.rules().iter().map(rule).collect();
    let sources = limits
        .rules()
        .sources()
        .map(|(file, text)| json!({ "file": file, "sha256": sha256(text), "lines": text.lines().count() }));
    let reload = state.service.reloading().last_reload().map(|reload| {
        let age_ms = u64::try_from(reload.age().as_millis()).unwrap_or(u64::MAX);
        match reload.result() {
            Ok(rules) => json!({ "age_ms": age_ms, "result": "succeeded", "rules": rules }),
            Err(error) => json!({ "age_ms": age_ms, "result": "failed", "error": error.to_string() }),
        }
    });
    let warnings: Vec<String> = limits.rules().warnings().iter().map(ToString::to_string).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "namespace": inspector.as_ref().map(Inspector::namespace),
        "store": if inspector.is_some() { "redis" } else { "memory" },
        "rules": rules,
        "files": sources.collect::<Vec<_>>(),
        "warnings": warnings,
        "last_reload": reload,
        "listening": {
            "grpc_addr": state.listening.grpc,
            "http_addr": state.listening.http,
            "admin_addr": state.listening.admin,
        },
        "settings": state.settings.shown_settings,
    })
}

fn rule(rule: &Rule) -> Value {
    let (file, line) = rule.origin();
    json!({
        "domain": rule.domain(),
        "rule": rule.path(),
        "name": rule.name(),
        "gate": rule.gate_name(),
        "quota": quota(rule),
        "mode": mode(rule),
        "cost": rule.cost(),
        "file": file,
        "line": line,
    })
}

/// Returns the limit of requests without a tier, in words.
fn quota(rule: &Rule) -> String {
    match rule.limit(None) {
        Limit::Quota(quota) => quota.to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::DenyAll(_) => "denies every request".to_owned(),
    }
}

fn mode(rule: &Rule) -> &'static str {
    match () {
        () if rule.is_shadow() => "shadow",
        () if rule.is_quota() => "quota",
        () => "enforced",
    }
}

fn sha256(text: &str) -> String {
    super::access::hex(&Sha256::digest(text))
}

/// Writes the same as text: one rule a line, as envoyproxy/ratelimit does.
fn text(config: &Value) -> String {
    let mut out = String::new();
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for rule in config["rules"].as_array().into_iter().flatten() {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{}: {} ({}, gate {}) at {}:{}",
            word(&rule["rule"]),
            word(&rule["quota"]),
            word(&rule["mode"]),
            word(&rule["gate"]),
            word(&rule["file"]),
            rule["line"]
        );
    }
    for file in config["files"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "file {}: sha256 {}", word(&file["file"]), word(&file["sha256"]));
    }
    let reload = &config["last_reload"];
    let age_s = reload["age_ms"].as_u64().unwrap_or_default().saturating_add(500) / 1_000;
    let _ = match (reload.is_null(), reload["error"].as_str()) {
        (true, _) => writeln!(out, "last reload: none since the start"),
        (false, None) => writeln!(out, "last reload: succeeded {age_s} s ago"),
        (false, Some(error)) => writeln!(out, "last reload: failed {age_s} s ago: {error}"),
    };
    for (name, value) in config["listening"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "listening {name}: {}", word(value));
    }
    for (name, value) in config["settings"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "setting {name}: {}", word(value));
    }
    out
}

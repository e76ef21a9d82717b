//! Rules, and requests to the API.

use reqwest::Client;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::server::fixture::Running;

pub const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: user
    value: root
    rate_limit: { unlimited: true }
  - key: plan
    rate_limit: { unit: hour, requests_per_unit: 1, tiers: { pro: { requests_per_unit: 5 } } }
  - key: none
    rate_limit: { unit: hour, requests_per_unit: 0 }
  - key: tried
    rate_limit: { unit: hour, requests_per_unit: 1 }
    shadow_mode: true
  - key: held
    rate_limit: { in_flight: 1 }
";

/// A quota that no test exhausts by accident.
pub fn quota(units: u64) -> Value {
    json!({ "algorithm": "token_bucket", "requests_per_unit": units, "unit": "day" })
}

/// The response to a request.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Reply {
    /// Returns the end of a problem's type, and asserts that the document is complete.
    pub fn problem(&self) -> &str {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], self.status, "{self:?}");
        assert!(self.body["title"].as_str().is_some_and(|title| !title.is_empty()), "{self:?}");
        assert!(!self.detail().is_empty(), "{self:?}");
        self.body["type"].as_str().unwrap().strip_prefix("urn:tidegate:problem:").unwrap()
    }

    pub fn detail(&self) -> &str {
        self.body["detail"].as_str().unwrap()
    }
}

/// Posts a JSON value to an endpoint below `/v1/`.
pub async fn post(server: &Running, endpoint: &str, body: &Value) -> Reply {
    let request = Client::new().post(server.url(&format!("/v1/{endpoint}")));
    let request = request.header("content-type", "application/json").body(body.to_string());
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    Reply { status, headers, body }
}

pub fn by_rules(key: &str, value: &str) -> Value {
    json!({ "domain": "d", "descriptors": [{ "entries": [{ "key": key, "value": value }] }] })
}

pub fn by_gate(gate: &str, key: &str) -> Value {
    json!({ "gate": gate, "key": key })
}

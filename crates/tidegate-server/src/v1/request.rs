//! The requests of the API.

use axum::extract::{FromRequest, Request};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate::Quota;
use tidegate_rules::{Limit, Rules};
use utoipa::ToSchema;

use super::mistake;
use crate::body;
use crate::http_state::HttpState;
use crate::problem::Problem;

/// A check by rules (`domain` and `descriptors`), or of one key of a gate (`gate`, `key`).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckRequest {
    /// The domain of the rules that decide.
    #[schema(min_length = 1)]
    pub(super) domain: Option<String>,
    /// The properties of the request that the rules match, 1 to 100.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) descriptors: Option<Vec<RequestDescriptor>>,
    /// The name of a gate: of a rule, also its readable name such as `api / user`, or any other together with `quota`.
    #[schema(pattern = "^([a-z0-9_.-]{1,64}|.+ / .+)$")]
    pub(super) gate: Option<String>,
    /// The key to limit, such as a user or an address. It can be empty.
    pub(super) key: Option<String>,
    /// The units that the check consumes. 0 consumes none, and shows whether one is available.
    #[schema(default = 1)]
    pub(super) cost: Option<u64>,
    /// The longest delay at a leaky bucket that the client accepts; by default any.
    pub(super) max_delay_us: Option<u64>,
    pub(super) quota: Option<QuotaSpec>,
}

/// Several checks, all admitted or none: by rules (`domain` and `descriptors`), or of keys of gates (`checks`).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckAllRequest {
    /// The domain of the rules that decide.
    #[schema(min_length = 1)]
    pub(super) domain: Option<String>,
    /// The properties of the request that the rules match, 1 to 100.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) descriptors: Option<Vec<RequestDescriptor>>,
    /// The checks, 1 to 100.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) checks: Option<Vec<GateCheck>>,
}

/// Checks whose units are charged now and settled later by `/v1/commit` or `/v1/cancel`: by rules (`domain` and
/// `descriptors`), or of keys of gates (`checks`). All are admitted, or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReserveRequest {
    /// The domain of the rules that decide.
    #[schema(min_length = 1)]
    pub(super) domain: Option<String>,
    /// The properties of the request that the rules match, 1 to 100.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) descriptors: Option<Vec<RequestDescriptor>>,
    /// The checks, 1 to 100.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) checks: Option<Vec<GateCheck>>,
    /// After which time a hold that was not settled ends: 1,000 (1 s) to 86,400,000 (24 h).
    #[schema(default = 60_000, minimum = 1_000, maximum = 86_400_000)]
    pub(super) ttl_ms: Option<u64>,
    #[schema(default = "keep")]
    pub(super) at_end: Option<AtEnd>,
    /// The identity of the reservation: a repetition with the same id, checks, ttl and end, before it is settled,
    /// charges nothing and returns an equal token. By default random.
    pub(super) id: Option<String>,
}

/// What happens to the units of a hold that was not settled when it ends.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AtEnd {
    /// They stay charged.
    Keep,
    /// They are refunded.
    Back,
}

/// Settles a reservation with its actual units.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitRequest {
    /// The token of the reservation.
    #[schema(pattern = "^[A-Za-z0-9_-]+$")]
    pub(super) token: String,
    /// The actual units of each hold of the reservation, in the order of its `holds`.
    pub(super) actuals: Vec<u64>,
}

/// Settles a reservation without charging anything.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelRequest {
    /// The token of the reservation.
    #[schema(pattern = "^[A-Za-z0-9_-]+$")]
    pub(super) token: String,
}

/// Units of in-flight limits, held by this server until `/v1/release`: by rules (`domain` and `descriptors`), or of keys
/// of gates (`checks`). Rates among them are charged. All are admitted, or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireRequest {
    /// The domain of the rules that decide.
    #[schema(min_length = 1)]
    pub(super) domain: Option<String>,
    /// The properties of the request that the rules match, 1 to 100.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) descriptors: Option<Vec<RequestDescriptor>>,
    /// The checks, 1 to 100.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) checks: Option<Vec<GateCheck>>,
    /// After which time the permit is released automatically: 1 to 3,600,000 (1 h). Choose the longest time of the work: the
    /// units of a client that is lost are in use until then.
    #[schema(default = 60_000, minimum = 1, maximum = 3_600_000)]
    pub(super) ttl_ms: Option<u64>,
}

/// Releases a permit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseRequest {
    /// The `id` of the permit.
    #[serde(deserialize_with = "permit_id")]
    pub(super) permit: String,
}

/// An acquire can have the permit `null`, which a client may pass on.
fn permit_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let id: Option<String> = Option::deserialize(deserializer)?;
    id.ok_or_else(|| D::Error::custom("null is no permit: its acquire holds no unit, so release nothing"))
}

/// Keys and values that rules match, in the order of the rules' levels.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestDescriptor {
    pub(super) entries: Vec<RequestEntry>,
    /// How many requests the descriptor stands for; each costs the rule's `cost`. 0 charges none, and shows whether one
    /// passes.
    #[schema(default = 1)]
    pub(super) hits: Option<u64>,
    /// The client's tier, for rules with `tiers`.
    pub(super) tier: Option<String>,
}

/// A key and its value.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestEntry {
    pub(super) key: String,
    pub(super) value: String,
}

/// A check of one key of a gate.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GateCheck {
    /// The name of a gate: of a rule, also its readable name such as `api / user`, or any other together with `quota`.
    #[schema(pattern = "^([a-z0-9_.-]{1,64}|.+ / .+)$")]
    pub(super) gate: String,
    /// The key to limit, such as a user or an address. It can be empty.
    pub(super) key: String,
    /// The units that the check consumes.
    #[schema(default = 1)]
    pub(super) cost: Option<u64>,
    pub(super) quota: Option<QuotaSpec>,
}

/// The quota of a gate that is not one of the rules, with the fields and meanings of a `rate_limit` in rule files. A
/// gate of the rules has its quota there, and none here.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QuotaSpec {
    /// The units that a window admits; of a bucket, those of the refill.
    #[schema(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_unit: Option<u64>,
    /// The window: `second`, `minute`, `hour`, `day`, `week`, `month` (30 days) or `year` (365 days).
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    /// The window, instead of a unit: `500ms`, `90s`, `1h30m`, `7d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    /// The time zone of a calendar window, with `every` as `day`, `week`, `month`, `quarter` or `year`.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// `fixed_window` (default, by the clock), `token_bucket`, `leaky_bucket`, `sliding_log` or `sliding_counter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<String>,
    /// The capacity of a token bucket, or the queue length of a leaky bucket; by default `requests_per_unit`.
    #[schema(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    /// Units in use at the same time, instead of a rate, for `/v1/acquire`.
    #[schema(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u64>,
}

/// The body of a request, in JSON without unknown fields.
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<HttpState> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &HttpState) -> Result<Self, Problem> {
        // A page of another site can send other types from a browser without asking first.
        if !is_json(request.headers()) {
            return Err(Problem::unsupported_media_type());
        }
        let body = body::read(request.into_body(), api.max_message_bytes, &api.body_memory).await?;
        let mut json = serde_json::Deserializer::from_slice(&body);
        let parsed = serde_path_to_error::deserialize(&mut json);
        let parsed = parsed.map_err(|error| Problem::malformed(mistake::describe(&error)))?;
        json.end()
            .map_err(|error| Problem::malformed(format!("the body goes on after the object: {error}")))?;
        Ok(Self(parsed))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}

impl QuotaSpec {
    /// Returns the quota. It is read by the loader of rule files, so that the fields have the same meaning in both.
    pub(super) fn quota(&self, gate: &str) -> Result<Quota, Problem> {
        let rule = json!({ "domain": "quota", "descriptors": [{ "key": "quota", "rate_limit": self }] });
        // JSON is YAML.
        let rules = Rules::parse("quota", &rule.to_string()).map_err(|errors| {
            let errors = errors.iter().map(|error| {
                error
                    .suggestion()
                    .map_or(error.message().to_owned(), |hint| format!("{}: {hint}", error.message()))
            });
            let errors: Vec<String> = errors.collect();
            Problem::invalid(format!("the `quota` of gate `{gate}`: {}", errors.join("; ")))
        })?;
        match rules.iter().next().map(|rule| rule.limit(None)) {
            Some(Limit::Quota(quota)) => Ok(quota),
            _ => Err(Problem::invalid(format!(
                "the `quota` of gate `{gate}` admits nothing: give at least 1 unit"
            ))),
        }
    }
}

//! Writes the decision of rules as a response of the protocol.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::HeaderName;
use http::header::RETRY_AFTER;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::{Value as Json, json};
use tidegate::{Decision, Quota, Source};
use tidegate_http::Headers;
use tidegate_rules::{Limit, Rule, RuleOutcome, RuleResult, RulesDecision};

use crate::for_clients::whole_seconds;
use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::unit;

pub(crate) const fn code(is_allowed: bool) -> Code {
    if is_allowed { Code::Ok } else { Code::OverLimit }
}

/// Returns the status of a descriptor. Without an outcome, its limit is not known. `is_returned`: it gave units back,
/// so it denies nothing.
pub(crate) fn status(
    outcome: Option<&RuleOutcome>,
    descriptor: &RateLimitDescriptor,
    is_returned: bool,
) -> DescriptorStatus {
    let mut status = DescriptorStatus::default();
    status.set_code(code(is_returned || outcome.is_none_or(RuleOutcome::is_allowed)));
    let Some(outcome) = outcome else { return status };
    match outcome.result() {
        RuleResult::Unlimited => status.limit_remaining = u32::MAX,
        RuleResult::Decided(decision) => {
            status.current_limit = Some(current_limit(outcome, descriptor, decision));
            status.limit_remaining = saturate(decision.remaining());
            let reset = prost_types::Duration { seconds: reset_seconds(&in_window(decision)), nanos: 0 };
            status.duration_until_reset = Some(reset);
        }
        _ => {}
    }
    status
}

/// Returns the limit that decided. Its unit is unknown if its window is none of the protocol's units.
fn current_limit(outcome: &RuleOutcome, descriptor: &RateLimitDescriptor, decision: &Decision) -> RateLimit {
    let name = outcome.rule().and_then(Rule::name).unwrap_or_default().to_owned();
    let mut limit = RateLimit { name, requests_per_unit: saturate(decision.limit()), ..Default::default() };
    let window = quota(outcome, descriptor).map(|quota| quota.window());
    limit.set_unit(unit::of_window(window.unwrap_or_default()));
    limit
}

/// Returns the quota that decided. For a limit that denies everything, it is one with its window.
fn quota(outcome: &RuleOutcome, descriptor: &RateLimitDescriptor) -> Option<Quota> {
    outcome.quota().or_else(|| {
        let window = match (outcome.rule().map(|rule| rule.limit(None)), &descriptor.limit) {
            (Some(Limit::DenyAll(window)), _) => window,
            (None, Some(own)) => unit::window(own.unit)?,
            _ => return None,
        };
        Quota::try_fixed_window(1, window).ok()
    })
}

/// Counts the times of a limit of 0 from the beginning of its window on, as those of all others: it decides without the
/// store, with the length of the window as its times.
#[expect(
    clippy::disallowed_methods,
    reason = "no server decides here: the limit admits nothing, and counts nothing"
)]
fn in_window(decision: &Decision) -> Cow<'_, Decision> {
    if decision.source() != Source::Rule {
        return Cow::Borrowed(decision);
    }
    let window = decision.retry_after().as_micros().max(1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = u64::try_from(now.as_micros() % window).unwrap_or_default();
    Cow::Owned(decision.clone().aged(Duration::from_micros(age)))
}

/// Returns the time until the limit is entirely available again. If no unit remains, it is the time until one is, as
/// in the headers of `tidegate-http`. In whole seconds, rounded up, because Envoy cuts fractions off.
fn reset_seconds(decision: &Decision) -> i64 {
    let is_denied = !decision.is_allowed() || decision.is_shadow();
    let reset = match is_denied || decision.remaining() == 0 {
        true => decision.retry_after(),
        false => decision.reset_after(),
    };
    i64::try_from(whole_seconds(reset)).unwrap_or(i64::MAX)
}

fn saturate(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Returns the headers that report the binding limit. Only a denial has a retry time.
pub(crate) fn headers(
    headers: &Headers,
    names: Option<&HeaderNames>,
    decision: &RulesDecision,
    request: &RateLimitRequest,
    is_allowed: bool,
) -> Vec<HeaderValue> {
    if *headers == Headers::none() {
        return Vec::new();
    }
    let written = decision.binding().and_then(|binding| {
        let at = decision.outcomes().iter().position(|outcome| std::ptr::eq(outcome, binding))?;
        let charged = request.descriptors.iter().filter(|descriptor| !descriptor.is_negative_hits);
        let quota = quota(binding, charged.into_iter().nth(at)?)?;
        Some(headers.of_rule(binding, &quota, &in_window(binding.decision()?)))
    });
    let values = written.iter().flatten().filter(|(name, _)| !(is_allowed && *name == RETRY_AFTER));
    let values = values.filter_map(|(name, value)| {
        let name = names.map_or(name, |names| names.of(name));
        Some((name.to_string(), value.to_str().ok()?.to_owned()))
    });
    values.map(|(key, value)| HeaderValue { key, value, ..Default::default() }).collect()
}

/// Returns the domain and the metadata of the rules that let the request pass, if they have any. With the request, also
/// its descriptors and its hits, whether there is metadata or not.
pub(crate) fn metadata(
    request: &RateLimitRequest,
    decision: Option<&RulesDecision>,
    with_request: bool,
) -> Option<Struct> {
    let of_rules = decision.map(RulesDecision::metadata).unwrap_or_default();
    if of_rules.is_empty() && !with_request {
        return None;
    }
    let mut fields = json!({ "domain": request.domain });
    if with_request {
        fields["descriptors"] = request.descriptors.iter().map(described).collect();
        if request.hits_addend > 0 {
            fields["hitsAddend"] = request.hits_addend.into();
        }
    }
    if !of_rules.is_empty() {
        fields["metadata"] = of_rules.into();
    }
    match value(&fields).kind {
        Some(Kind::StructValue(fields)) => Some(fields),
        _ => None,
    }
}

/// Returns a descriptor of the request in the form of envoyproxy/ratelimit.
fn described(descriptor: &RateLimitDescriptor) -> Json {
    let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    let mut described = json!({ "entries": entries.collect::<Vec<_>>() });
    if let Some(limit) = &descriptor.limit {
        // As text of Protocol Buffers, which leaves out zeros.
        let number =
            (limit.requests_per_unit > 0).then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
        let unit = (limit.unit != 0).then(|| format!("unit:{}", limit.unit().as_str_name()));
        described["limit"] = number.into_iter().chain(unit).collect::<Vec<_>>().join(" ").into();
    }
    if let Some(hits) = descriptor.hits_addend {
        described["hitsAddend"] = hits.into();
    }
    described
}

fn value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(*flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(items) => Kind::ListValue(ListValue { values: items.iter().map(value).collect() }),
        Json::Object(entries) => {
            let fields = entries.iter().map(|(name, entry)| (name.clone(), value(entry))).collect();
            Kind::StructValue(Struct { fields })
        }
    };
    Value { kind: Some(kind) }
}

/// Names for the headers of [`Headers::x_ratelimit`](tidegate_http::Headers::x_ratelimit), and for `Retry-After`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Instead of `X-RateLimit-Limit`.
    pub limit: HeaderName,
    /// Instead of `X-RateLimit-Remaining`.
    pub remaining: HeaderName,
    /// Instead of `X-RateLimit-Reset`.
    pub reset: HeaderName,
    /// Instead of `Retry-After`: the wait of a denial in seconds.
    pub wait: HeaderName,
}

impl HeaderNames {
    /// Returns the name under which a header is sent.
    pub(crate) fn of<'n>(&'n self, name: &'n HeaderName) -> &'n HeaderName {
        match name.as_str() {
            "x-ratelimit-limit" => &self.limit,
            "x-ratelimit-remaining" => &self.remaining,
            "x-ratelimit-reset" => &self.reset,
            "retry-after" => &self.wait,
            _ => name,
        }
    }
}

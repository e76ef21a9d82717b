//! Requests of the protocol, and their responses.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost_types::value::Kind;
use serde_json::{Value, json};
use tidegate::{Event, Limiter, ManualClock, Observer, OnFailure};
use tidegate_http::{Draft, Headers};
use tidegate_rules::ChargedDenials;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_server::proto::envoy::r#type::v3::RateLimitUnit;
use tidegate_server::{HeaderNames, RateLimitService, ServiceError};

use super::fixture::{descriptor, given_back, in_memory, on, request, with_hits, with_limit};
use crate::support::fixture::namespace;

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3, name: per_user }
    metadata: { plan: free }
  - key: user
    value: root
    rate_limit: { unlimited: true }
  - key: path
    rate_limit: { unit: hour, requests_per_unit: 1 }
    shadow_mode: true
  - key: banned
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: tokens
    rate_limit: { unit: second, requests_per_unit: 100 }
  - key: premium
    rate_limit: { unit: minute, requests_per_unit: 5, replaces: [{ name: per_user }] }
  - key: bucket
    rate_limit: { algorithm: token_bucket, requests_per_unit: 60, unit: minute, burst: 60 }
  - key: odd
    rate_limit: { every: 15m, requests_per_unit: 4 }
  - key: held
    rate_limit: { in_flight: 2 }
---
domain: quotas
charge: each
descriptors:
  - key: quota_a
    rate_limit: { unit: minute, requests_per_unit: 1 }
    quota_mode: true
  - key: quota_b
    rate_limit: { unit: minute, requests_per_unit: 2 }
    quota_mode: true
";

fn service() -> (RateLimitService, ManualClock) {
    let clock = ManualClock::new();
    (on(RULES, &Limiter::in_memory_with(clock.clone())), clock)
}

/// The code, limit, unit and remaining units of a status.
type Row = (Code, Option<(u32, Unit)>, u32);

fn row(status: &DescriptorStatus) -> Row {
    let limit = status.current_limit.as_ref().map(|limit| (limit.requests_per_unit, limit.unit()));
    (status.code(), limit, status.limit_remaining)
}

fn rows(response: &RateLimitResponse) -> Vec<Row> {
    response.statuses.iter().map(row).collect()
}

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

#[tokio::test]
async fn statuses_are_in_the_order_of_the_descriptors() {
    let (service, _) = service();
    let user = || descriptor(&[("user", "ada")]);
    let all = request([
        descriptor(&[("unknown", "x")]),
        user(),
        descriptor(&[("user", "root")]),
        descriptor(&[("tokens", "x")]),
    ]);
    let response = service.decide(&all).await.unwrap();
    assert_eq!(response.overall_code(), OK);
    let expected = [
        (OK, None, 0),
        (OK, Some((3, Unit::Minute)), 2),
        (OK, None, u32::MAX),
        (OK, Some((100, Unit::Second)), 99),
    ];
    assert_eq!(rows(&response), expected);
    assert_eq!(response.statuses[1].current_limit.as_ref().unwrap().name, "per_user");

    let thrice = RateLimitRequest { hits_addend: 3, ..request([descriptor(&[("tokens", "x")]), user()]) };
    let denied = service.decide(&thrice).await.unwrap();
    assert_eq!(denied.overall_code(), OVER);
    // All or nothing: what the tokens' rule admits alone was not charged.
    assert_eq!(rows(&denied), [(OK, Some((100, Unit::Second)), 99), (OVER, Some((3, Unit::Minute)), 2)]);
    assert!(denied.raw_body.is_empty() && denied.response_headers_to_add.is_empty());
}

#[tokio::test]
async fn hits_of_the_descriptor_replace_those_of_the_request() {
    let (service, _) = service();
    let tokens = || descriptor(&[("tokens", "x")]);
    for (of_request, of_descriptor, remaining) in [
        (0, None, 99),
        (1, None, 98),
        (7, None, 91),
        (7, Some(11), 80),
        (7, Some(0), 80),
        (0, Some(0), 80),
        (0, Some(80), 0),
    ] {
        let descriptor = match of_descriptor {
            Some(hits) => with_hits(tokens(), hits),
            None => tokens(),
        };
        let request = RateLimitRequest { hits_addend: of_request, ..request([descriptor]) };
        let response = service.decide(&request).await.unwrap();
        assert_eq!(response.statuses[0].limit_remaining, remaining, "{of_request} {of_descriptor:?}");
        assert_eq!(response.overall_code(), OK);
    }
    let check_only = service.decide(&request([with_hits(tokens(), 0)])).await.unwrap();
    assert_eq!(check_only.overall_code(), OVER, "nothing remains");
}

#[tokio::test]
async fn cost_above_a_limit_is_denied_by_its_rule_alone() {
    let redis = tidegate_testkit::shared();
    let limiter =
        Limiter::builder().url(redis.url()).namespace(&namespace()).deadline(Duration::from_secs(10));
    for limiter in [Limiter::in_memory(), limiter.build().unwrap()] {
        let service = on(RULES, &limiter);
        let (user, premium) = (descriptor(&[("user", "ada")]), descriptor(&[("premium", "eve")]));
        service.decide(&request([user.clone()])).await.unwrap();
        let minute = Some((3, Unit::Minute));
        let four =
            RateLimitRequest { hits_addend: 4, ..request([user.clone(), descriptor(&[("odd", "x")])]) };
        let quarter_hours = Some((4, Unit::Unknown));
        for _ in 0..2 {
            let denied = service.decide(&four).await.unwrap();
            assert_eq!(denied.overall_code(), OVER);
            assert_eq!(rows(&denied), [(OVER, minute, 2), (OK, quarter_hours, 4)], "nothing is charged");
            let reset = denied.statuses[0].duration_until_reset.unwrap().seconds;
            assert!((1..=60).contains(&reset), "{reset}");
        }
        // Two descriptors of one count.
        let two = || with_hits(user.clone(), 2);
        let twice = service.decide(&request([two(), two()])).await.unwrap();
        assert_eq!(rows(&twice), [(OK, minute, 2), (OVER, minute, 2)]);
        // A replaced rule denies nothing.
        let replaced = service.decide(&request([with_hits(user.clone(), 4), premium])).await.unwrap();
        assert_eq!(rows(&replaced), [(OK, None, 0), (OK, Some((5, Unit::Minute)), 4)]);
        let path = service.decide(&request([with_hits(descriptor(&[("path", "/")]), 9)])).await.unwrap();
        assert_eq!(rows(&path), [(OK, Some((1, Unit::Hour)), 1)], "in shadow mode");
        let own = with_limit(user.clone(), 2, RateLimitUnit::Hour as i32);
        let own = service.decide(&request([with_hits(own, 3)])).await.unwrap();
        assert_eq!(rows(&own), [(OVER, Some((2, Unit::Hour)), 2)]);

        // With `charge: each`, what admits is charged, and one rule in quota mode is enough.
        let (a, b) = (descriptor(&[("quota_a", "x")]), descriptor(&[("quota_b", "x")]));
        let quotas = |hits, descriptors| RateLimitRequest {
            domain: "quotas".to_owned(),
            hits_addend: hits,
            ..request(descriptors)
        };
        let response = service.decide(&quotas(2, vec![a.clone(), b.clone()])).await.unwrap();
        assert_eq!(response.overall_code(), OK);
        assert_eq!(rows(&response), [(OVER, Some((1, Unit::Minute)), 1), (OK, Some((2, Unit::Minute)), 0)]);
        let response = service.decide(&quotas(3, vec![a, b])).await.unwrap();
        assert_eq!(response.overall_code(), OVER);
        assert_eq!(rows(&response), [(OVER, Some((1, Unit::Minute)), 1), (OVER, Some((2, Unit::Minute)), 0)]);
    }
}

#[tokio::test]
async fn denied_request_is_charged_if_the_service_is_set_to() {
    let (service, _clock) = service();
    let service = service.charge_denied(ChargedDenials::All);
    let hits = |hits, descriptors: Vec<_>| RateLimitRequest { hits_addend: hits, ..request(descriptors) };
    let (tokens, user) = (descriptor(&[("tokens", "x")]), descriptor(&[("user", "ada")]));
    let denied = service.decide(&hits(4, vec![user.clone(), tokens.clone()])).await.unwrap();
    let (minute, second) = (Some((3, Unit::Minute)), Some((100, Unit::Second)));
    let expected = [(OVER, minute, 0), (OK, second, 100)];
    assert_eq!(rows(&denied), expected, "after the charge, of the rule that denies");
    assert_eq!(denied.statuses[0].duration_until_reset.unwrap().seconds, 60);
    let left = service.decide(&request([with_hits(user.clone(), 0), with_hits(tokens.clone(), 0)])).await;
    assert_eq!(rows(&left.unwrap()), expected);
    // Of a request that is denied by a peek, those are charged that would be denied.
    service.decide(&request([with_hits(user.clone(), 0), tokens.clone()])).await.unwrap();
    let left = service.decide(&request([with_hits(tokens.clone(), 0)])).await.unwrap();
    assert_eq!(left.statuses[0].limit_remaining, 100);
    let denied = service.decide(&request([with_hits(user, 0), with_hits(tokens, 101)])).await.unwrap();
    assert_eq!(rows(&denied), [(OVER, minute, 0), (OVER, second, 0)]);
}

#[tokio::test]
async fn peek_at_exactly_the_limit_passes_if_the_service_is_set_to() {
    for charge in ["all", "each"] {
        let (all, _clock) = service();
        let service = all.charge_denied(ChargedDenials::All).peeks_pass_at_limit(true);
        let tokens = || descriptor(&[(if charge == "all" { "tokens" } else { "quota_a" }, "x")]);
        let limit = if charge == "all" { 100 } else { 1 };
        let domain = if charge == "all" { "d" } else { "quotas" };
        let decide = async |descriptors: Vec<_>| {
            let request = RateLimitRequest { domain: domain.to_owned(), ..request(descriptors) };
            let response = service.decide(&request).await.unwrap();
            (response.overall_code(), response.statuses[0].limit_remaining)
        };
        assert_eq!(decide(vec![with_hits(tokens(), limit)]).await, (OK, 0));
        assert_eq!(decide(vec![with_hits(tokens(), 0)]).await, (OK, 0), "{charge}");
        let other = descriptor(&[(if charge == "all" { "odd" } else { "quota_b" }, "y")]);
        let peeks = vec![with_hits(tokens(), 0), with_hits(other.clone(), 0), descriptor(&[("no", "rule")])];
        assert_eq!(decide(peeks).await, (OK, 0), "{charge}, beside a peek and no rule");
        assert_eq!(decide(vec![with_hits(tokens(), 0), other]).await, (OK, 0), "{charge}, beside a charge");
        assert_eq!(decide(vec![tokens()]).await, (OVER, 0), "charged");
        assert_eq!(decide(vec![with_hits(tokens(), 0)]).await, (OVER, 0), "{charge}, above the limit");
    }
}

/// No charge exceeds the limit of a bucket, so its peeks would always pass.
#[tokio::test]
async fn peek_of_a_used_bucket_is_denied_under_every_setting() {
    let bucket = "{ unit: year, requests_per_unit: 4, algorithm: token_bucket, burst: 4 }";
    let rules = format!("domain: d\ndescriptors: [{{ key: a, rate_limit: {bucket} }}]");
    let service = in_memory(&rules).charge_denied(ChargedDenials::All).peeks_pass_at_limit(true);
    for (hits, expected) in [(4, OK), (1, OVER), (0, OVER)] {
        let asked = request([with_hits(descriptor(&[("a", "x")]), hits)]);
        assert_eq!(service.decide(&asked).await.unwrap().overall_code(), expected, "{hits} hits");
    }
}

#[tokio::test]
async fn shadow_rule_shows_and_charges_a_cost_above_its_limit() {
    let (service, _clock) = service();
    let service = service.charge_denied(ChargedDenials::All);
    let path = |hits| request([with_hits(descriptor(&[("path", "/")]), hits)]);
    let over = service.decide(&path(9)).await.unwrap();
    assert_eq!((over.overall_code(), rows(&over)), (OK, vec![(OK, Some((1, Unit::Hour)), 0)]));
    let reset = over.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((2..=3_600).contains(&reset), "the rest of the window: {reset}");
    let left = service.decide(&path(0)).await.unwrap();
    assert_eq!(left.statuses[0].limit_remaining, 0, "charged");
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a limit of 0 has no other clock")]
async fn reset_of_a_limit_of_0_is_the_rest_of_its_window() {
    const YEAR: u64 = 365 * 24 * 3_600;
    let (service, _) = service();
    let rest = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        i64::try_from(YEAR - now % YEAR).unwrap()
    };
    let none = with_limit(descriptor(&[("any", "x")]), 0, RateLimitUnit::Year as i32);
    let most = rest();
    let denied = service.decide(&request([none])).await.unwrap();
    let reset = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((rest()..=most).contains(&reset), "{reset}, not {most}");
}

#[tokio::test]
async fn limit_of_0_leaves_the_other_limits_in_the_response() {
    let (service, _) = service();
    let (banned, user) = (descriptor(&[("banned", "x")]), descriptor(&[("user", "ada")]));
    service.decide(&request([user.clone()])).await.unwrap();
    for _ in 0..2 {
        let denied = service.decide(&request([banned.clone(), user.clone()])).await.unwrap();
        assert_eq!(denied.overall_code(), OVER);
        let expected = [(OVER, Some((0, Unit::Day)), 0), (OK, Some((3, Unit::Minute)), 2)];
        assert_eq!(rows(&denied), expected, "nothing is charged");
    }
}

#[tokio::test]
async fn check_only_descriptor_denies_and_then_nothing_is_charged() {
    let (service, _) = service();
    let (tokens, user) = (descriptor(&[("tokens", "x")]), descriptor(&[("user", "ada")]));
    let both = || request([with_hits(tokens.clone(), 0), user.clone()]);
    assert_eq!(service.decide(&both()).await.unwrap().overall_code(), OK);
    service.decide(&request([with_hits(tokens.clone(), 100)])).await.unwrap();
    for _ in 0..2 {
        let denied = service.decide(&both()).await.unwrap();
        assert_eq!(denied.overall_code(), OVER);
        let expected = [(OVER, Some((100, Unit::Second)), 0), (OK, Some((3, Unit::Minute)), 2)];
        assert_eq!(rows(&denied), expected, "nothing is charged");
    }
    // With `charge: each`, what admits is charged.
    let (a, b) = (descriptor(&[("quota_a", "x")]), descriptor(&[("quota_b", "x")]));
    let quotas = |descriptors| RateLimitRequest { domain: "quotas".to_owned(), ..request(descriptors) };
    service.decide(&quotas(vec![a.clone()])).await.unwrap();
    let response = service.decide(&quotas(vec![with_hits(a, 0), b])).await.unwrap();
    assert_eq!(rows(&response), [(OVER, Some((1, Unit::Minute)), 0), (OK, Some((2, Unit::Minute)), 1)]);
}

#[tokio::test]
async fn negative_hits_give_units_back_and_deny_nothing() {
    let (service, _) = service();
    let user = || descriptor(&[("user", "ada")]);
    for _ in 0..3 {
        service.decide(&request([user()])).await.unwrap();
    }
    let two = given_back(with_hits(user(), 2));
    let response = service.decide(&request([descriptor(&[("tokens", "x")]), two])).await.unwrap();
    assert_eq!(response.overall_code(), OK);
    assert_eq!(rows(&response), [(OK, Some((100, Unit::Second)), 99), (OK, Some((3, Unit::Minute)), 2)]);

    // Not below zero.
    let many = given_back(with_hits(user(), 1_000_000));
    assert_eq!(service.decide(&request([many])).await.unwrap().statuses[0].limit_remaining, 3);

    // Hits of 0 give nothing back; an exhausted limit denies no request that gives back.
    service.decide(&request([with_hits(user(), 3)])).await.unwrap();
    let none = given_back(with_hits(user(), 0));
    let response = service.decide(&request([none])).await.unwrap();
    assert_eq!((response.overall_code(), rows(&response)), (OK, vec![(OK, Some((3, Unit::Minute)), 0)]));

    // Beside a limit that denies without a check, too.
    let closed = with_limit(descriptor(&[("closed", "x")]), 0, RateLimitUnit::Hour as i32);
    let both = [given_back(with_hits(user(), 2)), given_back(closed)];
    let response = service.decide(&request(both)).await.unwrap();
    assert_eq!(response.statuses[0].limit_remaining, 2);
}

/// Such a rule was not charged by the request that gives back.
#[tokio::test]
async fn negative_hits_give_nothing_to_a_rule_that_another_one_replaces() {
    let (service, _) = service();
    let [user, premium] = [descriptor(&[("user", "ada")]), descriptor(&[("premium", "ada")])];
    service.decide(&request([with_hits(user.clone(), 2)])).await.unwrap();
    service.decide(&request([with_hits(user.clone(), 2), with_hits(premium.clone(), 2)])).await.unwrap();
    let both = [given_back(with_hits(user.clone(), 2)), given_back(with_hits(premium.clone(), 2))];
    service.decide(&request(both)).await.unwrap();
    for (peeked, left) in [(user, 1), (premium, 5)] {
        let response = service.decide(&request([with_hits(peeked, 0)])).await.unwrap();
        assert_eq!(response.statuses[0].limit_remaining, left);
    }
}

#[tokio::test]
async fn limit_of_a_descriptor_replaces_the_rules_and_needs_no_domain() {
    let (service, _) = service();
    let user = || descriptor(&[("user", "ada")]);
    let hour = RateLimitUnit::Hour as i32;
    let own = || with_limit(user(), 2, hour);
    for remaining in [1, 0] {
        let response = service.decide(&request([own()])).await.unwrap();
        assert_eq!(rows(&response), [(OK, Some((2, Unit::Hour)), remaining)]);
    }
    assert_eq!(service.decide(&request([own()])).await.unwrap().overall_code(), OVER);
    // The rule has its own count.
    assert_eq!(service.decide(&request([user()])).await.unwrap().statuses[0].limit_remaining, 2);
    // Nothing passes a limit of 0.
    let zero = service.decide(&request([with_limit(user(), 0, hour)])).await.unwrap();
    assert_eq!(rows(&zero), [(OVER, Some((0, Unit::Hour)), 0)]);

    let elsewhere = RateLimitRequest { domain: "unknown".to_owned(), ..request([own(), user()]) };
    let response = service.decide(&elsewhere).await.unwrap();
    assert_eq!(rows(&response), [(OK, Some((2, Unit::Hour)), 1), (OK, None, 0)]);
    for (unit, expected) in [
        (RateLimitUnit::Second, Unit::Second),
        (RateLimitUnit::Minute, Unit::Minute),
        (RateLimitUnit::Day, Unit::Day),
        (RateLimitUnit::Month, Unit::Month),
        (RateLimitUnit::Year, Unit::Year),
    ] {
        let response = service.decide(&request([with_limit(user(), 9, unit as i32)])).await.unwrap();
        assert_eq!(rows(&response), [(OK, Some((9, expected)), 8)]);
    }
}

#[tokio::test]
async fn shadow_rule_is_ok_with_the_rest_as_if_denied() {
    let (service, _) = service();
    let path = || request([descriptor(&[("path", "/")])]);
    assert_eq!(rows(&service.decide(&path()).await.unwrap()), [(OK, Some((1, Unit::Hour)), 0)]);
    let second = service.decide(&path()).await.unwrap();
    assert_eq!(second.overall_code(), OK);
    assert_eq!(rows(&second), [(OK, Some((1, Unit::Hour)), 0)]);
    assert!(second.statuses[0].duration_until_reset.unwrap().seconds > 0);
}

#[tokio::test]
async fn replaced_rule_is_neither_charged_nor_shown() {
    let (service, _) = service();
    let user = || descriptor(&[("user", "ada")]);
    let both = request([user(), descriptor(&[("premium", "ada")])]);
    let response = service.decide(&both).await.unwrap();
    assert_eq!(rows(&response), [(OK, None, 0), (OK, Some((5, Unit::Minute)), 4)]);
    assert_eq!(service.decide(&request([user()])).await.unwrap().statuses[0].limit_remaining, 2);
}

#[tokio::test]
async fn rules_in_quota_mode_deny_together() {
    let (service, _) = service();
    let descriptors = [descriptor(&[("quota_a", "x")]), descriptor(&[("quota_b", "x")])];
    let both = RateLimitRequest { domain: "quotas".to_owned(), ..request(descriptors) };
    for expected in [(OK, OK, OK), (OK, OVER, OK), (OVER, OVER, OVER)] {
        let response = service.decide(&both).await.unwrap();
        let codes = (response.overall_code(), response.statuses[0].code(), response.statuses[1].code());
        assert_eq!(codes, expected);
    }
}

#[tokio::test]
async fn windows_without_a_unit_have_the_unit_unknown() {
    let (service, _) = service();
    for (key, expected) in [
        ("odd", (4, Unit::Unknown)),
        ("bucket", (60, Unit::Minute)),
        ("tokens", (100, Unit::Second)),
        ("banned", (0, Unit::Day)),
    ] {
        let response = service.decide(&request([descriptor(&[(key, "x")])])).await.unwrap();
        assert_eq!(row(&response.statuses[0]).1, Some(expected), "{key}");
    }
}

#[tokio::test]
async fn reset_is_in_whole_seconds_rounded_up() {
    let (service, clock) = service();
    let ada = || request([descriptor(&[("user", "ada")])]);
    let reset = |response: RateLimitResponse| response.statuses[0].duration_until_reset.unwrap();
    let first = reset(service.decide(&ada()).await.unwrap());
    assert_eq!(first.nanos, 0);
    assert!((1..=60).contains(&first.seconds));
    clock.advance(Duration::from_micros(1));
    let second = reset(service.decide(&ada()).await.unwrap());
    assert!((first.seconds - 1..=first.seconds).contains(&second.seconds), "{first:?} {second:?}");
}

#[tokio::test]
async fn metadata_of_passing_rules_is_dynamic_metadata() {
    let (service, _) = service();
    let ada = || request([descriptor(&[("user", "ada")])]);
    let metadata = service.decide(&ada()).await.unwrap().dynamic_metadata.unwrap();
    assert_eq!(metadata.fields["domain"].kind, Some(Kind::StringValue("d".to_owned())));
    let Some(Kind::StructValue(rules)) = &metadata.fields["metadata"].kind else { panic!("{metadata:?}") };
    assert_eq!(rules.fields["plan"].kind, Some(Kind::StringValue("free".to_owned())));
    service.decide(&RateLimitRequest { hits_addend: 2, ..ada() }).await.unwrap();
    assert_eq!(service.decide(&ada()).await.unwrap().dynamic_metadata, None);
}

#[tokio::test]
async fn request_is_dynamic_metadata_if_the_service_is_set_to() {
    let (service, _) = service();
    let service = service.request_metadata(true);
    let own = with_hits(with_limit(descriptor(&[("a", "b"), ("c", "")]), 5, RateLimitUnit::Hour as i32), 0);
    let plain = RateLimitRequest { hits_addend: 2, ..request([descriptor(&[("user", "ada")]), own]) };
    let response = service.decide(&plain).await.unwrap();
    let expected = json!({
        "domain": "d",
        "descriptors": [
            { "entries": ["user=ada"] },
            { "entries": ["a=b", "c="], "limit": "requests_per_unit:5 unit:HOUR", "hitsAddend": 0.0 },
        ],
        "hitsAddend": 2.0,
        "metadata": { "plan": "free" },
    });
    assert_eq!(as_json(&Kind::StructValue(response.dynamic_metadata.unwrap())), expected);
    // Also without `metadata` of rules.
    let response = service.decide(&request([descriptor(&[("no", "rule")])])).await.unwrap();
    let expected = json!({ "domain": "d", "descriptors": [{ "entries": ["no=rule"] }] });
    assert_eq!(as_json(&Kind::StructValue(response.dynamic_metadata.unwrap())), expected);
}

pub fn as_json(kind: &Kind) -> Value {
    let inner = |value: &prost_types::Value| as_json(value.kind.as_ref().unwrap());
    match kind {
        Kind::StructValue(fields) => {
            fields.fields.iter().map(|(name, field)| (name.clone(), inner(field))).collect()
        }
        Kind::ListValue(list) => list.values.iter().map(inner).collect(),
        Kind::StringValue(text) => json!(text),
        Kind::NumberValue(number) => json!(number),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn headers_report_the_binding_limit_only_if_they_are_on() {
    let headers = |response: &RateLimitResponse| -> Vec<(String, String)> {
        let headers = response.response_headers_to_add.iter();
        headers.map(|header| (header.key.clone(), header.value.clone())).collect()
    };
    let both = || request([descriptor(&[("tokens", "x")]), descriptor(&[("user", "ada")])]);
    let (service, _) = service();
    assert!(headers(&service.decide(&both()).await.unwrap()).is_empty());

    let x_only = Headers::new().draft(None);
    let named = service.clone().headers(x_only).denied_body("slow down");
    let admitted = headers(&named.decide(&both()).await.unwrap());
    let find = |headers: &[(String, String)], name: &str| {
        headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    };
    assert_eq!(find(&admitted, "x-ratelimit-limit").as_deref(), Some("3"));
    assert_eq!(find(&admitted, "x-ratelimit-remaining").as_deref(), Some("1"));
    assert_eq!(find(&admitted, "retry-after"), None);
    assert_eq!(admitted.len(), 3);

    let ietf = service.clone().headers(Headers::new().x_ratelimit(false).draft(Some(Draft::Eleven)));
    let admitted = headers(&ietf.decide(&both()).await.unwrap());
    assert_eq!(find(&admitted, "ratelimit-policy").as_deref(), Some("\"per_user\";q=3;w=60"));

    let denied = named.decide(&both()).await.unwrap();
    assert_eq!(denied.raw_body, b"slow down");
    let denied = headers(&denied);
    assert_eq!(find(&denied, "x-ratelimit-remaining").as_deref(), Some("0"));
    assert!(find(&denied, "retry-after").is_some(), "{denied:?}");
    // A descriptor's own limit has no rule.
    let own = with_limit(descriptor(&[("user", "bob")]), 7, RateLimitUnit::Hour as i32);
    let own = headers(&named.decide(&request([own])).await.unwrap());
    assert_eq!(find(&own, "x-ratelimit-limit").as_deref(), Some("7"));
}

#[tokio::test]
async fn headers_can_have_other_names() {
    let (service, _) = service();
    let name = |text: &'static str| http::HeaderName::from_static(text);
    let names = HeaderNames {
        wait: name("x-own-wait"),
        limit: name("x-own-limit"),
        remaining: name("ratelimit-remaining"),
        reset: name("x-reset"),
    };
    let service = service.headers(Headers::none().x_ratelimit(true).retry_after(true)).header_names(names);
    let asked = request([descriptor(&[("user", "ada")])]);
    for admitted in [true, true, true, false] {
        let response = service.decide(&asked).await.unwrap();
        let sent: Vec<&str> = response.response_headers_to_add.iter().map(|header| &*header.key).collect();
        let names = ["x-own-limit", "ratelimit-remaining", "x-reset", "x-own-wait"];
        assert_eq!(sent, names[..if admitted { 3 } else { 4 }]);
    }
}

/// The name of a gate tells clients what its rule matches.
#[tokio::test]
async fn headers_name_a_rule_by_its_name_or_its_limit_and_by_its_path_if_asked_for() {
    let (service, _) = service();
    let neutral = service.headers(Headers::none().draft(Some(Draft::Eleven)));
    let paths = neutral.clone().headers(Headers::none().draft(Some(Draft::Eleven)).rule_paths(true));
    for (service, key, expected) in [
        (&neutral, "user", r#""per_user";q=3;w=60"#),
        (&neutral, "odd", r#""4/15min";q=4;w=900"#),
        (&paths, "user", r#""per_user";q=3;w=60"#),
        (&paths, "odd", r#""d.odd";q=4;w=900"#),
    ] {
        let response = service.decide(&request([descriptor(&[(key, "x")])])).await.unwrap();
        let sent = response.response_headers_to_add.iter().find(|header| header.key == "ratelimit-policy");
        assert_eq!(sent.map(|header| &*header.value), Some(expected), "{key}");
    }
}

#[tokio::test]
async fn service_in_shadow_mode_charges_and_denies_nothing() {
    let (service, _) = service();
    let service = service.shadow(true).denied_body("slow down");
    let asked = request([descriptor(&[("user", "ada")]), descriptor(&[("banned", "x")])]);
    let response = service.decide(&asked).await.unwrap();
    assert_eq!((response.overall_code(), &*response.raw_body), (OK, &b""[..]));
    assert_eq!(response.statuses[1].code(), OVER, "a status shows which descriptor is over its limit");
    let ada = || request([descriptor(&[("user", "ada")])]);
    for left in [2, 1, 0] {
        let response = service.decide(&ada()).await.unwrap();
        assert_eq!(rows(&response), [(OK, Some((3, Unit::Minute)), left)]);
    }
    let response = service.decide(&ada()).await.unwrap();
    assert_eq!((response.overall_code(), rows(&response)), (OK, vec![(OVER, Some((3, Unit::Minute)), 0)]));
    let response = service.headers(Headers::new()).decide(&ada()).await.unwrap();
    let sent: Vec<&str> = response.response_headers_to_add.iter().map(|header| &*header.key).collect();
    assert!(sent.contains(&"x-ratelimit-limit") && !sent.contains(&"retry-after"), "{sent:?}");
}

#[tokio::test]
async fn broken_requests_are_errors_and_charge_nothing() {
    let service = in_memory(RULES);
    let user = || descriptor(&[("user", "ada")]);
    let too_many = request(std::iter::repeat_with(user).take(101));
    for (request, expected) in [
        (RateLimitRequest { domain: String::new(), ..request([user()]) }, "no `domain`"),
        (request([]), "no `descriptors`"),
        (too_many, "101 `descriptors`"),
        (request([user(), with_limit(user(), 1, 0)]), "no known `unit` (0)"),
        (request([user(), with_limit(user(), 1, 99)]), "no known `unit` (99)"),
    ] {
        let error = service.decide(&request).await.unwrap_err();
        assert!(matches!(error, ServiceError::Invalid(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = service.decide(&request([user(), descriptor(&[("held", "x")])])).await.unwrap_err();
    assert!(error.to_string().contains("in flight"), "{error}");
    assert_eq!(service.decide(&request([user()])).await.unwrap().statuses[0].limit_remaining, 2);
}

#[tokio::test]
async fn failure_policy_decides_while_redis_is_away() {
    // Nothing listens there.
    for (policy, expected) in [
        (OnFailure::Open, Some(OK)),
        (OnFailure::Closed, Some(OVER)),
        (OnFailure::Local, Some(OK)),
        (OnFailure::Error, None),
    ] {
        let limiter = Limiter::builder().url("redis://127.0.0.1:1").on_failure(policy);
        let service = on(RULES, &limiter.stderr_warnings(false).build().unwrap());
        let user = descriptor(&[("user", "ada")]);
        let decided = service.decide(&request([user.clone()])).await;
        assert_eq!(decided.ok().map(|response| response.overall_code()), expected, "{policy:?}");
        // Under every policy, units that could not be given back are an error.
        let returned = service.decide(&request([given_back(user)])).await;
        assert!(matches!(returned, Err(ServiceError::Limiter(_))), "{policy:?}");
    }
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

/// Units that were asked for are not charged if they are above the limit, so a peek passes again.
#[tokio::test]
async fn charge_that_is_denied_after_a_peek_warns_once_with_the_name_of_the_setting() {
    let warnings = Arc::new(Warnings::default());
    let limiter = Limiter::builder().in_memory().observer(warnings.clone()).build().unwrap();
    let service = on(RULES, &limiter);
    let decide = async |hits| {
        let used = request([with_hits(descriptor(&[("bucket", "x")]), hits)]);
        service.decide(&used).await.unwrap().overall_code() == OK
    };
    // Not peeked before: a client that asks for units.
    let asked = request([with_hits(descriptor(&[("premium", "x")]), 9)]);
    assert_eq!(service.decide(&asked).await.unwrap().overall_code(), OVER);
    let mut passed = 0;
    for _ in 0..10 {
        if decide(0).await {
            passed += 1;
            decide(27).await;
        }
    }
    assert_eq!(passed, 10);
    let warned = warnings.0.lock().unwrap();
    let [warning] = &warned[..] else { panic!("{warned:?}") };
    assert!(warning.contains("`d.bucket`") && warning.contains("`charge_used: true`"), "{warning}");
}

#[tokio::test]
async fn used_units_are_charged_beside_a_peek_that_denies() {
    let rules = "
domain: d
descriptors:
  - { key: full, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: used, rate_limit: { unit: hour, requests_per_unit: 20 }, charge_used: true }
";
    let service = on(rules, &Limiter::in_memory());
    let full = |hits| with_hits(descriptor(&[("full", "x")]), hits);
    let used = |hits| with_hits(descriptor(&[("used", "x")]), hits);
    assert_eq!(service.decide(&request([full(1)])).await.unwrap().overall_code(), OK);
    assert_eq!(service.decide(&request([full(0), used(21)])).await.unwrap().overall_code(), OVER);
    assert_eq!(service.decide(&request([used(0)])).await.unwrap().overall_code(), OVER);
}

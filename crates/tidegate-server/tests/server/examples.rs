//! The examples in the README of envoyproxy/ratelimit, and the mistakes that its loader rejects.

use std::time::Duration;

use tidegate::{Limiter, ManualClock};
use tidegate_rules::Rules;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use super::fixture::{descriptor, on, request};

/// A rule file, its domain, and requests. `500 x a=b + c=d, e=f -> OK: 500 SECOND, no limit` sends 500 requests with two
/// descriptors, and expects [`describe`] to return the text after the arrow for each. `wait 1s` advances the clock.
const EXAMPLES: &[(&str, &str, &str)] = &[
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/1-two-values.yaml"),
        "mongo_cps",
        "
        500 x database=users -> OK: 500 SECOND
        1 x database=users -> OVER_LIMIT: over 500 SECOND
        500 x database=default -> OK: 500 SECOND
        1 x database=default -> OVER_LIMIT: over 500 SECOND
        9 x database=other -> OK: no limit
        wait 1s
        1 x database=users -> OK: 500 SECOND
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/2-nested.yaml"),
        "messaging",
        "
        5 x message_type=marketing, to_number=2061111111 + to_number=2061111111 -> OK: 5 DAY, 100 DAY
        3 x message_type=marketing, to_number=2061111111 + to_number=2061111111 -> OVER_LIMIT: over 5 DAY, 100 DAY
        1 x message_type=marketing, to_number=2062222222 -> OK: 5 DAY
        9 x message_type=marketing -> OK: no limit
        95 x to_number=2061111111 -> OK: 100 DAY
        1 x to_number=2061111111 -> OVER_LIMIT: over 100 DAY
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/3-most-specific.yaml"),
        "edge_proxy_per_ip",
        "
        10 x remote_address=50.0.0.1 -> OK: 10 SECOND
        1 x remote_address=50.0.0.1 -> OVER_LIMIT: over 10 SECOND
        1 x remote_address=50.0.0.2 -> OK: 10 SECOND
        2 x remote_address=50.0.0.5 -> OVER_LIMIT: over 0 SECOND
        wait 1s
        1 x remote_address=50.0.0.5 -> OVER_LIMIT: over 0 SECOND
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/4-depth.yaml"),
        "shallow",
        "301 x key=value, subkey=subvalue -> OK: no limit",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/4-depth.yaml"),
        "deep",
        "
        300 x key=value, subkey=subvalue -> OK: 300 SECOND
        1 x key=value, subkey=subvalue -> OVER_LIMIT: over 300 SECOND
        1 x key=value, subkey=other -> OK: 300 SECOND
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/5-unlimited.yaml"),
        "internal",
        "
        200 x ldap=a -> OK: unlimited
        100 x azure=a -> OK: 100 MINUTE
        1 x azure=a + ldap=a -> OVER_LIMIT: over 100 MINUTE, unlimited
        1 x other=a -> OK: no limit
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/6-shadow.yaml"),
        "example6",
        "
        30 x service=auth-service, user=user-a -> OK: 10 SECOND
        20 x service=auth-service, user=user-b -> OK: 20 SECOND
        1 x service=auth-service, user=user-b -> OVER_LIMIT: over 20 SECOND
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/7-replaces.yaml"),
        "example7",
        "
        10 x key_1=value_1, user=bkthomps + key_2=value_2, user=bkthomps -> OK: no limit, 10 SECOND
        1 x key_1=value_1, user=bkthomps + key_2=value_2, user=bkthomps -> OVER_LIMIT: no limit, over 10 SECOND
        5 x key_1=value_1, user=bkthomps -> OK: 5 SECOND
        1 x key_1=value_1, user=bkthomps -> OVER_LIMIT: over 5 SECOND
        1 x key_2=value_2, user=bkthomps -> OVER_LIMIT: over 10 SECOND
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/8-detailed-metric.yaml"),
        "example8",
        "
        10 x key1=unspecified_value -> OK: 10 MINUTE
        1 x key1=unspecified_value -> OVER_LIMIT: over 10 MINUTE
        10 x key1=unspecified_value2 -> OK: 10 MINUTE
        20 x key1=value1 -> OK: 20 MINUTE
        1 x key1=value1 -> OVER_LIMIT: over 20 MINUTE
        ",
    ),
    (
        include_str!("../../../tidegate-rules/tests/rules/fixtures/examples/9-wildcard.yaml"),
        "example9",
        "
        20 x key1=value1 -> OK: 20 MINUTE
        1 x key1=value1 -> OVER_LIMIT: over 20 MINUTE
        20 x key1=value2 -> OK: 20 MINUTE
        9 x key1=other -> OK: no limit
        ",
    ),
];

fn describe(response: &RateLimitResponse) -> String {
    let statuses = response.statuses.iter().map(|status| match &status.current_limit {
        Some(limit) => {
            let over = if status.code() == Code::OverLimit { "over " } else { "" };
            format!("{over}{} {}", limit.requests_per_unit, limit.unit().as_str_name())
        }
        None if status.limit_remaining == u32::MAX => "unlimited".to_owned(),
        None => "no limit".to_owned(),
    });
    format!("{}: {}", response.overall_code().as_str_name(), statuses.collect::<Vec<_>>().join(", "))
}

fn parse(text: &str) -> RateLimitDescriptor {
    let entries: Vec<_> = text.split(", ").map(|entry| entry.split_once('=').unwrap()).collect();
    descriptor(&entries)
}

#[tokio::test]
async fn examples_have_the_meaning_of_envoys_service() {
    for (rules, domain, steps) in EXAMPLES {
        let clock = ManualClock::new();
        let service = on(rules, &Limiter::in_memory_with(clock.clone()));
        for line in steps.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line == "wait 1s" {
                clock.advance(Duration::from_secs(1));
                continue;
            }
            let (times, rest) = line.split_once(" x ").unwrap();
            let (descriptors, expected) = rest.split_once(" -> ").unwrap();
            let request = request(descriptors.split(" + ").map(parse));
            let request = RateLimitRequest { domain: (*domain).to_owned(), ..request };
            for _ in 0..times.parse().unwrap() {
                assert_eq!(describe(&service.decide(&request).await.unwrap()), expected, "{domain}: {line}");
            }
        }
    }
}

/// Each mistake that Envoy's loader rejects: the file, and a part of the error here.
const REJECTED: &[(&str, &str)] = &[
    ("domain: [", "YAML"),
    ("descriptors: []", "needs a `domain`"),
    ("domain: ''", "the `domain` is empty"),
    ("domain: d\ncolour: red", "no field `colour`"),
    ("domain: d\n1: red", "`1`"),
    ("domain: d\ndescriptors: [text]", "must be a map"),
    ("domain: d\ndescriptors: [{ value: a }]", "needs a `key`"),
    ("domain: d\ndescriptors: [{ key: '' }]", "the `key` is empty"),
    ("domain: d\ndescriptors: [{ key: a, ratelimit: {} }]", "no field `ratelimit`"),
    ("domain: d\ndescriptors: [{ key: a, value: b }, { key: a, value: b }]", "duplicate"),
    ("domain: d\ndescriptors: [{ key: a }, { key: a }]", "duplicate"),
    ("domain: d\ndescriptors: [{ key: a, descriptors: [{ key: b }, { key: b }] }]", "duplicate"),
    (
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: eon, requests_per_unit: 1 } }]",
        "no unit `eon`",
    ),
    ("domain: d\ndescriptors: [{ key: a, rate_limit: { requests_per_unit: 1 } }]", "`unit`"),
    ("domain: d\ndescriptors: [{ key: a, rate_limit: { unit: unknown, requests_per_unit: 1 } }]", "no unit"),
    ("domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: -1 } }]", "at least 0"),
    (
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: many } }]",
        "a whole number",
    ),
    ("domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, unlimited: true } }]", "`unlimited`"),
    (
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1, replaces: [{}] } }]",
        "needs a `name`",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: { unit: day, requests_per_unit: 1, name: n, replaces: [{ name: n }] }",
        "itself",
    ),
    // There, in two files.
    ("domain: d\n---\ndomain: d", "duplicate domain `d`"),
];

/// Files that Envoy's loader accepts, or reads in another way.
const DIFFERENT: &[(&str, Result<(), &str>)] = &[
    ("domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day } }]", Err("needs `requests_per_unit`")),
    (
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: x }] } }]",
        Ok(()),
    ),
    ("domain: d\ndescriptors: [{ key: a, value: 1.5 }]", Ok(())),
    ("domain: d\ndescriptors: [{ key: a, value: b_c }, { key: a_b, value: c }]", Ok(())),
];

#[test]
fn mistakes_that_envoys_loader_rejects_are_rejected() {
    for (text, expected) in REJECTED {
        let errors = Rules::parse("mistake.yaml", text).expect_err(text).to_string();
        assert!(errors.contains(expected) && errors.contains("mistake.yaml:"), "{text}\n{errors}");
    }
}

#[test]
fn files_with_another_meaning_are_as_documented() {
    for (text, expected) in DIFFERENT {
        let loaded = Rules::parse("different.yaml", text).map_err(|errors| errors.to_string());
        match expected {
            Ok(()) => assert!(loaded.is_ok(), "{text}: {loaded:?}"),
            Err(expected) => assert!(loaded.expect_err(text).contains(expected), "{text}"),
        }
    }
}

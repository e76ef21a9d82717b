//! The unit and the partition key of a rule, read by a parser for structured fields.

use http::{Request, StatusCode};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tidegate::{Limiter, Quota};
use tidegate_http::{Draft, GateRule, Headers, Key, MissingKey, RateLimitLayer};

use super::fixture::{Reply, Tested, by_key, request, unescaped};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::HOUR;

const SECRET: [u8; 32] = *b"0123456789abcdef0123456789abcdef";

fn rule(limiter: &Limiter, limit: u64) -> GateRule {
    GateRule::new(limiter.gate("api", Quota::fixed_window(limit, HOUR)), by_key())
}

fn tested(rule: GateRule) -> Tested {
    Tested::new(RateLimitLayer::of([rule]))
}

/// Returns a parameter of the only limit in a field.
fn parameter(reply: &Reply, field: &str, name: &str) -> Option<BareItem> {
    let text = reply.header(field).unwrap();
    let list = Parser::new(text).parse::<List>().unwrap_or_else(|error| panic!("{text}: {error}"));
    match &list[..] {
        [ListEntry::Item(item)] => item.params.get(name).cloned(),
        other => panic!("{other:?}"),
    }
}

/// Returns the partition key, which is the same in both fields.
fn partition_key(reply: &Reply) -> Option<Vec<u8>> {
    let [in_policy, in_limit] = ["ratelimit-policy", "ratelimit"].map(|field| parameter(reply, field, "pk"));
    assert_eq!(in_policy, in_limit, "{reply:?}");
    in_policy.map(|item| item.as_byte_sequence().unwrap().to_vec())
}

#[tokio::test]
async fn unit_of_a_rule_is_reported_unless_it_is_the_default() {
    for (unit, policy) in [
        ("requests", r#""api";q=5;w=3600"#),
        ("tokens", r#""api";q=5;qu="tokens";w=3600"#),
        ("content-bytes", r#""api";q=5;qu="content-bytes";w=3600"#),
        // Draft 11 registers this word, although its text says `requests`.
        ("request", r#""api";q=5;qu="request";w=3600"#),
        ("concurrent-requests", r#""api";q=5;qu="concurrent-requests";w=3600"#),
        ("", r#""api";q=5;qu="";w=3600"#),
        ("to\"k\\en%\r\n;q=9é", r#""api";q=5;qu="to\"k\\en%25%0D%0A;q=9%C3%A9";w=3600"#),
    ] {
        let reply = tested(rule(&Limiter::in_memory(), 5).quota_unit(unit)).get("a").await;
        assert_eq!(reply.header("ratelimit-policy"), Some(policy));
        assert_eq!(reply.header("ratelimit"), Some(r#""api";r=4;t=3600"#));
    }
}

#[tokio::test]
async fn unit_of_an_in_flight_limit_replaces_concurrent_requests() {
    let gate = Limiter::in_memory().gate("uploads", Quota::in_flight(1));
    let held = gate.try_acquire("a").await.unwrap().permit().unwrap();
    for (unit, policy, exceeded) in [
        (None, r#""uploads";q=1;qu="concurrent-requests""#, "of 1 concurrent request"),
        (Some("acme-megabytes"), r#""uploads";q=1;qu="acme-megabytes""#, "of 1 units in flight"),
        (Some("requests"), r#""uploads";q=1"#, "of 1 units in flight"),
    ] {
        let rule = GateRule::new(gate.clone(), by_key());
        let rule = unit.map_or(rule.clone(), |unit| rule.quota_unit(unit));
        let reply = tested(rule).get("a").await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(reply.header("ratelimit-policy"), Some(policy));
        assert_eq!(reply.header("ratelimit"), Some(r#""uploads";r=0"#));
        assert!(reply.body.contains(exceeded), "{reply:?}");
    }
    drop(held);
}

#[tokio::test]
async fn draft_7_and_x_ratelimit_have_no_unit_and_no_partition_key() {
    let rule = rule(&Limiter::in_memory(), 5).quota_unit("tokens").partition_key(SECRET);
    let headers = Headers::new().draft(Some(Draft::Seven));
    let reply = Tested::new(RateLimitLayer::of([rule]).headers(headers)).get("a").await;
    assert_eq!(reply.header("ratelimit-policy"), Some("5;w=3600"));
    assert_eq!(reply.header("ratelimit"), Some("limit=5, remaining=4, reset=3600"));
    assert_eq!(reply.header("x-ratelimit-limit"), Some("5"));
}

#[tokio::test]
async fn partition_key_is_reported_only_if_the_rule_says_so() {
    let limiter = Limiter::in_memory();
    let reply = tested(rule(&limiter, 5)).get("k1").await;
    assert_eq!(reply.header("ratelimit-policy"), Some(r#""api";q=5;w=3600"#));
    assert_eq!(reply.header("ratelimit"), Some(r#""api";r=4;t=3600"#));
    let reply = tested(rule(&limiter, 5).quota_unit("tokens").partition_key(SECRET)).get("k1").await;
    let policy = r#""api";q=5;qu="tokens";w=3600;pk=:t42JgzF8vNMxPp78:"#;
    assert_eq!(reply.header("ratelimit-policy"), Some(policy));
    assert_eq!(reply.header("ratelimit"), Some(r#""api";r=3;t=3600;pk=:t42JgzF8vNMxPp78:"#));
}

#[tokio::test]
async fn partition_key_is_the_same_for_all_requests_of_a_client_and_no_other() {
    let service = tested(rule(&Limiter::in_memory(), 1).partition_key(SECRET));
    let (admitted, denied) = (service.get("k1").await, service.get("k1").await);
    assert_eq!((admitted.status, denied.status), (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS));
    let partition = partition_key(&admitted).unwrap();
    assert_eq!(partition_key(&denied).unwrap(), partition);
    assert_ne!(partition_key(&service.get("k2").await).unwrap(), partition);

    let mut other_secret = SECRET;
    other_secret[0] ^= 1;
    let other = tested(rule(&Limiter::in_memory(), 1).partition_key(other_secret)).get("k1").await;
    assert_ne!(partition_key(&other).unwrap(), partition);
}

#[tokio::test]
async fn colocated_keys_have_partitions_of_their_own() {
    let rule = rule(&Limiter::in_memory(), 9).colocate_with(Key::header("tenant")).partition_key(SECRET);
    let service = tested(rule);
    let of_tenant = async |tenant: &str| {
        let request = Request::builder().header("x-api-key", "k1").header("tenant", tenant);
        partition_key(&service.send(request.body(String::new()).unwrap()).await).unwrap()
    };
    assert_eq!(of_tenant("a").await, of_tenant("a").await);
    assert_ne!(of_tenant("a").await, of_tenant("b").await);
}

#[tokio::test]
async fn requests_that_share_a_missing_key_share_its_partition() {
    let rule = rule(&Limiter::in_memory(), 9).partition_key(SECRET);
    let service = Tested::new(RateLimitLayer::of([rule]).missing_key(MissingKey::Share));
    let keyless = async || service.send(Request::new(String::new())).await;
    let partition = partition_key(&keyless().await).unwrap();
    assert_eq!(partition_key(&keyless().await).unwrap(), partition);
    assert_ne!(partition_key(&service.get("k1").await).unwrap(), partition);
}

#[test]
#[should_panic(expected = "the secret of `partition_key` has 15 bytes, fewer than 16")]
fn short_secret_panics_when_the_rule_is_built() {
    let _ = rule(&Limiter::in_memory(), 1).partition_key(&SECRET[..15]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_unit_and_any_key_are_structured_fields(
        unit in any::<String>(),
        key in prop::collection::vec((b' '..=u8::MAX).prop_filter("DEL", |byte| *byte != 0x7f), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let rule = rule(&Limiter::in_memory(), 5).quota_unit(&unit).partition_key(SECRET);
            let mut sent = request("");
            sent.headers_mut().insert("x-api-key", http::HeaderValue::from_bytes(&key).unwrap());
            let reply = tested(rule).send(sent).await;
            let reported = parameter(&reply, "ratelimit-policy", "qu");
            let reported = reported.map(|item| unescaped(item.as_string().unwrap().as_str()));
            prop_assert_eq!(reported, Some(unit).filter(|unit| unit != "requests"));
            prop_assert_eq!(partition_key(&reply).unwrap().len(), 12);
            // A short key is in any text by chance.
            let lines = ["ratelimit-policy", "ratelimit"].map(|field| reply.header(field).unwrap().as_bytes());
            prop_assert!(key.len() < 8 || lines.iter().all(|line| !line.windows(key.len()).any(|part| part == key)));
            Ok(())
        })?;
    }
}

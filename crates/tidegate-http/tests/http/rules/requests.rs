//! Decisions for requests whose limits come from rules.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use serde_json::json;
use tidegate::{AllDecision, Decision, Limiter, ManualClock, Quota, Source};
use tidegate_http::{Charge, Descriptors, Headers, Key, MissingKey, RateLimitLayer, Reason};
use tidegate_rules::{Descriptor, Mode, RuleResult, Rules, RulesDecision};
use tonic::Code;
use tonic_types::StatusExt;

use super::{BY_HEADERS, layer, layer_of, request, rules};
use crate::http::fixture::Tested;
use crate::support::fixture::{HOUR, builder, calls, limiter};

const TWO_AN_HOUR: &str = "descriptors: [{ key: api_key, rate_limit: { unit: hour, requests_per_unit: 2 } }]";

/// 3 per user and 2 per key; a shadow rule for the user `watched`, no rule for the user `staff`.
const SEVERAL: &str = "
descriptors:
  - { key: api_key, rate_limit: { name: per key, unit: hour, requests_per_unit: 2 } }
  - { key: api_key, value: none, rate_limit: { unit: hour, requests_per_unit: 0 } }
  - { key: user, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: user, value: watched, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: user, value: staff, rate_limit: { unlimited: true } }
  - { key: user, value: vip, rate_limit: { unit: hour, requests_per_unit: 9, replaces: [{ name: per key }] } }
";

#[tokio::test]
async fn rejection_names_the_path_of_the_rule_if_asked_for() {
    let server = tidegate_testkit::shared();
    let tested = Tested::new(layer(&limiter(&server), TWO_AN_HOUR));
    for left in [1, 0] {
        let reply = tested.get("ann").await;
        assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (StatusCode::OK, left));
        assert_eq!(reply.limits()[0].name, "api.api_key");
        assert_eq!((reply.limits()[0].quota, reply.limits()[0].window), (2, 3_600));
    }
    let denied = tested.get("ann").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.number("retry-after"), denied.number("x-ratelimit-reset"));
    let problem: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["violated-policies"], json!(["api.api_key"]));
    assert!(
        problem["detail"].as_str().unwrap().starts_with("The limit \"api.api_key\" of 2 in 3600 seconds")
    );
    let mut grpc = request(&[("x-api-key", "ann"), ("content-type", "application/grpc")]);
    *grpc.method_mut() = http::Method::POST;
    let status = tonic::Status::from_header_map(&tested.send(grpc).await.headers).unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("\"api.api_key\""), "{}", status.message());
    assert!(status.get_details_retry_info().unwrap().retry_delay.unwrap() > Duration::ZERO);
    assert_eq!(tested.get("bob").await.status, StatusCode::OK);
    assert_eq!(tested.calls(), 3);
}

/// Nothing of a rule's path is in a response, unless its author wrote a name, or the service asks for it.
#[tokio::test]
async fn responses_tell_the_limits_of_unnamed_rules_and_nothing_else_of_them() {
    const SECRET: &str = "
descriptors:
  - { key: api_key, value: gold-Ünï, rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: user, rate_limit: { name: 'pro users', unit: day, requests_per_unit: 3 } }
  - { key: user, value: banned, rate_limit: { unit: day, requests_per_unit: 0 } }
";
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let tested = Tested::new(layer(&limiter, SECRET).headers(Headers::new()));
    let both = || {
        let mut request = request(&[("x-user", "ann")]);
        request.headers_mut().insert("x-api-key", "gold-Ünï".parse().unwrap());
        request
    };
    let admitted = tested.send(both()).await;
    assert_eq!(admitted.header("ratelimit-policy"), Some(r#""2/h";q=2;w=3600, "pro users";q=3;w=86400"#));
    tested.send(both()).await;
    let denied = tested.send(both()).await;
    assert!(denied.body.contains("The limit \\\"2/h\\\" of 2 in 3600 seconds"), "{}", denied.body);
    let banned = tested.send(request(&[("x-user", "banned")])).await;
    assert_eq!(banned.header("ratelimit-policy"), Some(r#""denied";q=0;w=86400"#));
    for reply in [&admitted, &denied, &banned] {
        let all = format!("{:?} {}", reply.headers, reply.body);
        assert!(!["gold", "api_key", "user.", "banned"].iter().any(|part| all.contains(part)), "{all}");
    }
}

#[tokio::test]
async fn rejection_that_begins_a_ban_reports_its_end() {
    const BANNED: &str = "
descriptors:
  - { key: api_key, rate_limit: { unit: hour, requests_per_unit: 1, ban: { after: 2, within: 10m, for: 3h } } }
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 9 } }
";
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let tested = Tested::new(layer(&limiter, BANNED));
        let both = || tested.send(request(&[("x-api-key", "ann"), ("x-user", "ada")]));
        assert_eq!(both().await.status, StatusCode::OK);
        assert!(both().await.number("retry-after") <= 3_600);
        for _ in 0..2 {
            let banned = both().await;
            assert_eq!(banned.status, StatusCode::TOO_MANY_REQUESTS);
            assert!((10_790..=10_800).contains(&banned.number("retry-after")), "{:?}", banned.headers);
            assert_eq!(banned.number("x-ratelimit-remaining"), 0);
        }
        assert_eq!(tested.get("bob").await.status, StatusCode::OK);
        assert_eq!(tested.send(request(&[("x-user", "ada")])).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn all_rules_are_checked_in_one_call_and_the_binding_one_is_reported() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    // Sends no calls in the background, which the server would count too.
    let limiter =
        builder(server.url()).follow_overrides(false).instances(1).publish_figures(false).build().unwrap();
    let tested = Tested::new(layer(&limiter, SEVERAL));
    let both = |key| request(&[("x-api-key", key), ("x-user", "ada")]);
    let first = tested.send(both("k1")).await;
    let names: Vec<_> = first.limits().into_iter().map(|limit| (limit.name, limit.remaining)).collect();
    assert_eq!(names, [("per key".to_owned(), 1), ("api.user".to_owned(), 2)]);
    let before = calls(&server, "evalsha") + calls(&server, "eval");
    tested.send(both("k1")).await;
    assert_eq!(calls(&server, "evalsha") + calls(&server, "eval"), before + 1);
    let denied = tested.send(both("k1")).await;
    let problem: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["violated-policies"], json!(["per key"]));
    // The rejected request did not charge the user.
    assert_eq!(tested.send(both("k2")).await.status, StatusCode::OK);
    let denied = tested.send(both("k2")).await;
    assert!(denied.body.contains("api.user"), "{}", denied.body);
}

#[tokio::test]
async fn each_kind_of_rule_has_its_outcome() {
    let server = tidegate_testkit::shared();
    let tested = Tested::with(layer(&limiter(&server), SEVERAL), |request| {
        let rules_decision = request.extensions().get::<RulesDecision>().unwrap();
        let outcomes = rules_decision.outcomes().iter().map(|rule| match rule.result() {
            RuleResult::Decided(decision) if decision.is_shadow() => "shadow",
            RuleResult::Decided(_) => "decided",
            RuleResult::Unlimited => "unlimited",
            RuleResult::Replaced => "replaced",
            RuleResult::NoRule => "no rule",
            other => panic!("{other:?}"),
        });
        let outcomes = outcomes.collect::<Vec<_>>().join(", ");
        let has_decision = request.extensions().get::<Decision>().is_some();
        assert_eq!(has_decision, rules_decision.binding().is_some());
        assert_eq!(request.extensions().get::<AllDecision>().is_some(), has_decision);
        std::future::ready(Response::new(outcomes))
    });
    for (headers, expected) in [
        (&[][..], "200 "),
        (&[("x-user", "staff")], "200 unlimited"),
        (&[("x-user", "watched")], "200 decided"),
        (&[("x-user", "watched")], "200 shadow"),
        (&[("x-user", "watched"), ("x-api-key", "w")], "200 decided, shadow"),
        (&[("x-user", "vip"), ("x-api-key", "v")], "200 replaced, decided"),
        (&[("x-user", "vip"), ("x-api-key", "v")], "200 replaced, decided"),
        (&[("x-user", "vip"), ("x-api-key", "v")], "200 replaced, decided"),
        (&[("x-api-key", "none")], "429 api.api_key_none"),
    ] {
        let reply = tested.send(request(headers)).await;
        let text = match reply.status {
            StatusCode::OK => reply.body.clone(),
            _ => serde_json::from_str::<serde_json::Value>(&reply.body).unwrap()["violated-policies"][0]
                .as_str()
                .unwrap()
                .to_owned(),
        };
        assert_eq!(format!("{} {text}", reply.status.as_u16()), expected, "{headers:?}");
        let has_headers = reply.header("x-ratelimit-limit").is_some();
        assert_eq!(
            has_headers,
            text.contains("decided,") || text.starts_with("replaced") || text.starts_with("api.")
        );
    }
}

/// The service knows the plan of each key. `none` has no requests.
#[tokio::test]
async fn descriptor_with_its_own_limit_needs_no_rule() {
    let limiter = Limiter::in_memory_with(ManualClock::at(Duration::from_secs(1_577_836_800)));
    let descriptors = Descriptors::from_fn("api", |parts| {
        let key = parts.headers.get("x-api-key").unwrap();
        let requests = if key == "none" { 0 } else { 2 };
        vec![Descriptor::new().entry("plan of", key).limit(requests, HOUR).unwrap()]
    });
    let limits = rules(TWO_AN_HOUR).bind(&limiter);
    let tested = Tested::new(RateLimitLayer::with_rules(limits, descriptors).unwrap());
    for left in [1, 0] {
        let reply = tested.get("ann").await;
        assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (StatusCode::OK, left));
        assert_eq!(reply.limits()[0].name, "descriptor-limit");
    }
    assert_eq!(tested.get("ann").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(tested.get("bob").await.status, StatusCode::OK);
    let denied = tested.get("none").await;
    assert_eq!((denied.status, denied.number("retry-after")), (StatusCode::TOO_MANY_REQUESTS, 3_600));
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""descriptor-limit";q=0;w=3600"#));
}

#[test]
fn layer_refuses_rules_that_it_cannot_apply() {
    for setting in ["quota_mode", "charge_used"] {
        let descriptors = format!(
            "charge: each\ndescriptors:\n  - {{ key: user, {setting}: true, rate_limit: {{ unit: day, requests_per_unit: 3 }} }}"
        );
        let limits = rules(&descriptors).bind(&Limiter::in_memory());
        let error = RateLimitLayer::with_rules(limits, "api").unwrap_err();
        assert!(error.is_config());
        let text = format!("api.yaml:8: a layer does not support `{setting}`");
        assert!(error.to_string().contains(&text), "{error}");
    }
}

#[tokio::test]
async fn a_rule_that_denies_all_charges_none_of_the_others() {
    let server = tidegate_testkit::shared();
    let tested = Tested::new(layer(&limiter(&server), SEVERAL));
    for _ in 0..5 {
        let reply = tested.send(request(&[("x-api-key", "none"), ("x-user", "eve")])).await;
        assert_eq!((reply.status, reply.number("x-ratelimit-limit")), (StatusCode::TOO_MANY_REQUESTS, 0));
        assert_eq!(reply.header("ratelimit-policy"), Some(r#""api.api_key_none";q=0;w=3600"#));
        assert_eq!(reply.number("retry-after"), 3_600);
    }
    let reply = tested.send(request(&[("x-user", "eve")])).await;
    assert_eq!(reply.number("x-ratelimit-remaining"), 2);
}

#[tokio::test]
async fn charge_each_charges_admitting_rules_though_another_denies() {
    let server = tidegate_testkit::shared();
    let rules = Rules::parse("api.yaml", &format!("{BY_HEADERS}charge: each\n{SEVERAL}")).unwrap();
    let layer = RateLimitLayer::with_rules(rules.bind(&limiter(&server)), "api").unwrap();
    let tested = Tested::new(layer);
    let both = || request(&[("x-api-key", "k"), ("x-user", "ada")]);
    for left in [1, 0] {
        assert_eq!(tested.send(both()).await.number("x-ratelimit-remaining"), left);
    }
    let denied = tested.send(both()).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    // The third request charged the user.
    assert_eq!(tested.send(request(&[("x-user", "ada")])).await.status, StatusCode::TOO_MANY_REQUESTS);
    let none = request(&[("x-api-key", "none"), ("x-user", "bob")]);
    assert_eq!(tested.send(none).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(tested.send(request(&[("x-user", "bob")])).await.number("x-ratelimit-remaining"), 1);
}

#[tokio::test]
async fn response_decides_the_charge_of_shadow_rules_too() {
    let server = tidegate_testkit::shared();
    let charge = Charge::when(|response| response.status == StatusCode::UNAUTHORIZED);
    let layer = layer(&limiter(&server), SEVERAL).charge(charge);
    let tested = Tested::with(layer, |request| {
        let mut response = Response::new(String::new());
        if request.headers().contains_key("x-fails") {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
        }
        std::future::ready(response)
    });
    for _ in 0..5 {
        let reply = tested.send(request(&[("x-api-key", "k"), ("x-user", "watched")])).await;
        assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (StatusCode::OK, 2));
    }
    let failing = || request(&[("x-api-key", "k"), ("x-user", "watched"), ("x-fails", "1")]);
    for (status, left) in [(401, 1), (401, 0), (429, 0)] {
        let reply = tested.send(failing()).await;
        assert_eq!((reply.status.as_u16(), reply.number("x-ratelimit-remaining")), (status, left));
    }
}

#[tokio::test]
async fn candidate_of_a_rule_is_reported_beside_it_and_denies_nothing() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let text = "descriptors: [{ key: api_key, rate_limit: { unit: hour, requests_per_unit: 3, candidate: { requests_per_unit: 1 } } }]";
    let silent = Tested::new(layer(&limiter, text));
    let first = silent.get("ann").await;
    assert_eq!((first.status, first.number("x-ratelimit-remaining")), (StatusCode::OK, 2));
    assert_eq!(first.header("x-ratelimit-shadow"), None);
    let tested = Tested::new(layer(&limiter, text).headers(Headers::new().shadow(true)));
    let second = tested.get("ann").await;
    assert_eq!((second.status, second.number("x-ratelimit-remaining")), (StatusCode::OK, 1));
    let trace = |denied: &str| format!(r#""api.api_key.candidate";r=0;t=3600{denied}"#);
    assert_eq!(second.header("x-ratelimit-shadow"), Some(&*trace(";denied")));
    assert_eq!(tested.get("bob").await.header("x-ratelimit-shadow"), Some(&*trace("")));
    assert_eq!(tested.get("ann").await.status, StatusCode::OK);
    let denied = tested.get("ann").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS, "by the rule itself");
    assert_eq!(denied.header("x-ratelimit-shadow"), Some(&*trace(";denied")));
}

#[tokio::test]
async fn request_waits_for_the_limits_of_rules() {
    for charge in ["all", "each"] {
        let clock = ManualClock::new();
        let limiter = Limiter::in_memory_with(clock.clone());
        let text = format!(
            "{BY_HEADERS}charge: {charge}
descriptors:
  - {{ key: api_key, rate_limit: {{ algorithm: token_bucket, every: 1s, requests_per_unit: 1 }} }}
  - {{ key: user, rate_limit: {{ algorithm: sliding_log, unit: hour, requests_per_unit: 3 }} }}
  - {{ key: user, value: none, rate_limit: {{ unit: minute, requests_per_unit: 0 }} }}
"
        );
        let rules = Rules::parse("api.yaml", &text).unwrap();
        let tested = Tested::new(layer_of(&rules, &limiter).wait(Duration::from_secs(5), 10));
        let both = || request(&[("x-api-key", "k"), ("x-user", "ada")]);
        assert_eq!(tested.send(both()).await.status, StatusCode::OK);
        let waiting = tokio::spawn({
            let tested = tested.clone();
            async move { tested.send(both()).await }
        });
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished());
        // A request that is denied in any case does not wait.
        let none = request(&[("x-api-key", "k2"), ("x-user", "none")]);
        assert_eq!(tested.send(none).await.status, StatusCode::TOO_MANY_REQUESTS);
        clock.advance(Duration::from_secs(1));
        let reply = waiting.await.unwrap();
        assert_eq!(reply.status, StatusCode::OK);
        // Each request was charged once, regardless of the number of checks.
        let log = reply.limits().into_iter().find(|limit| limit.name == "api.user").unwrap();
        assert_eq!(log.remaining, 1, "{charge}");
    }
}

#[tokio::test]
async fn single_rule_spends_its_lease() {
    let server = tidegate_testkit::shared();
    let text = "descriptors: [{ key: api_key, rate_limit: { algorithm: token_bucket, unit: minute, requests_per_unit: 600, lease: { max_units: 100, hold: 1m } } }]";
    let tested = Tested::with(layer(&limiter(&server), text), |request| {
        let source = request.extensions().get::<Decision>().unwrap().source();
        std::future::ready(Response::new(source.to_string()))
    });
    let mut sources = Vec::new();
    for _ in 0..500 {
        sources.push(tested.get("k").await.body);
    }
    assert!(sources.contains(&Source::Lease.to_string()), "{sources:?}");
}

#[tokio::test]
async fn tier_comes_from_the_file_or_the_service() {
    let tiers = "descriptors: [{ key: api_key, rate_limit: { unit: hour, requests_per_unit: 1, tiers: { pro: { requests_per_unit: 5 } } } }]";
    let with_header = format!("tier: {{ header_name: x-plan }}\n{tiers}");
    let limit = async |layer: RateLimitLayer, plan: Option<&str>| {
        let mut request = request(&[("x-api-key", "k")]);
        if let Some(plan) = plan {
            request.headers_mut().insert("x-plan", plan.parse().unwrap());
        }
        Tested::new(layer).send(request).await.number("x-ratelimit-limit")
    };
    let limiter = Limiter::in_memory();
    for (plan, expected) in [(None, 1), (Some("pro"), 5), (Some("staff"), 1)] {
        assert_eq!(limit(layer(&limiter, &with_header), plan).await, expected, "{plan:?}");
        assert_eq!(limit(layer(&limiter, tiers), plan).await, 1);
    }
    let of_service = |tier: &'static str| {
        let descriptors = Descriptors::of("api").tier(move |_| Some(tier));
        RateLimitLayer::with_rules(rules(&with_header).bind(&limiter), descriptors).unwrap()
    };
    assert_eq!(limit(of_service("pro"), None).await, 5);
    assert_eq!(limit(of_service("none"), Some("pro")).await, 1);
}

#[tokio::test]
async fn closure_builds_descriptors_and_the_layer_sets_the_cost() {
    let rules = Rules::parse(
        "api.yaml",
        "domain: api\ndescriptors: [{ key: path, rate_limit: { unit: hour, requests_per_unit: 9 } }]",
    );
    let descriptors = Descriptors::from_fn("api", |parts| {
        vec![Descriptor::new().entry_owned("path", parts.uri.path().to_uppercase())]
    });
    let layer = RateLimitLayer::with_rules(rules.unwrap().bind(&Limiter::in_memory()), descriptors).unwrap();
    let cost = |parts: &http::request::Parts| {
        parts.headers.get("x-cost").map_or(0, |cost| cost.to_str().unwrap().parse().unwrap())
    };
    let tested = Tested::new(layer.cost(cost));
    let send = async |path: &str, cost: u64| {
        let request = Request::get(path).header("x-cost", cost).body(String::new()).unwrap();
        tested.send(request).await
    };
    assert_eq!(send("/a", 4).await.number("x-ratelimit-remaining"), 5);
    assert_eq!(send("/A", 4).await.number("x-ratelimit-remaining"), 1);
    assert_eq!(send("/a", 4).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send("/a", 10).await.status, StatusCode::BAD_REQUEST);
    let free = send("/a", 0).await;
    assert_eq!((free.status, free.header("x-ratelimit-limit")), (StatusCode::OK, None));
}

/// A group leaves out what costs nothing, so the layer asks it first.
#[tokio::test]
async fn descriptor_without_hits_denies_beside_shadow_rules_and_gates_and_nothing_is_charged() {
    let limiter = Limiter::in_memory_with(ManualClock::at(Duration::from_secs(1_577_836_800 + 600)));
    let rules = rules(&format!(
        "{}\n  - {{ key: user, shadow_mode: true, rate_limit: {{ unit: hour, requests_per_unit: 9 }} }}\n",
        "descriptors:\n  - { key: api_key, rate_limit: { unit: hour, requests_per_unit: 2 } }"
    ));
    let limits = rules.bind(&limiter);
    let layer = |users: &'static [&'static str]| {
        let descriptors = Descriptors::from_fn("api", move |parts| {
            let hits = parts.headers["x-hits"].to_str().unwrap().parse().unwrap();
            let user = |user: &&'static str| Descriptor::new().entry("user", *user);
            let key = Descriptor::new().entry("api_key", &parts.headers["x-api-key"]).hits(hits);
            std::iter::once(key).chain(users.iter().map(user)).collect()
        });
        RateLimitLayer::with_rules(limits.clone(), descriptors).unwrap()
    };
    let all = limiter.gate("all", Quota::fixed_window(9, HOUR));
    let beside_gate = layer(&[]).and(all.clone(), Key::constant(""));
    for (key, layer) in [("shadow", layer(&["ada"])), ("gate", beside_gate)] {
        let tested = Tested::new(layer);
        let of_hits = |hits| tested.send(request(&[("x-api-key", key), ("x-hits", hits)]));
        assert_eq!(of_hits("0").await.status, StatusCode::OK, "{key}");
        assert_eq!(of_hits("2").await.status, StatusCode::OK, "{key}");
        let denied = of_hits("0").await;
        assert_eq!(
            (denied.status, denied.number("retry-after")),
            (StatusCode::TOO_MANY_REQUESTS, 3_000),
            "{key}"
        );
        assert_eq!(denied.header("ratelimit-policy"), Some(r#""2/h";q=2;w=3600"#), "{key}");
    }
    assert_eq!(all.key("").peek().await.unwrap().remaining(), 7);
    let user = [Descriptor::new().entry("user", "ada")];
    let user = limits.decide("api", &user, &Mode::peek()).await.unwrap().decision;
    assert_eq!(user.outcomes()[0].decision().unwrap().remaining(), 7);
}

#[tokio::test]
async fn rule_that_denies_every_request_denies_one_without_a_cost() {
    let tested = Tested::new(layer(&Limiter::in_memory(), SEVERAL).cost(|_| 0));
    for (key, status) in [("k", StatusCode::OK), ("none", StatusCode::TOO_MANY_REQUESTS)] {
        for _ in 0..4 {
            assert_eq!(tested.get(key).await.status, status, "{key}");
        }
    }
}

#[tokio::test]
async fn descriptor_without_hits_at_an_in_flight_rule_asks_whether_a_slot_is_free() {
    let limiter = Limiter::in_memory();
    let limits = rules("descriptors: [{ key: api_key, rate_limit: { in_flight: 1 } }]").bind(&limiter);
    let descriptors = Descriptors::from_fn("api", |parts| {
        vec![Descriptor::new().entry("api_key", &parts.headers["x-api-key"]).hits(0)]
    });
    let tested = Tested::new(RateLimitLayer::with_rules(limits.clone(), descriptors).unwrap());
    for _ in 0..2 {
        assert_eq!(tested.get("ann").await.status, StatusCode::OK);
    }
    let ann = [Descriptor::new().entry("api_key", "ann")];
    let _held = limits.acquire("api", &ann).await.unwrap();
    assert_eq!(tested.get("ann").await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn override_of_another_window_is_reported_with_that_window() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let gate = limiter.gate("api", Quota::fixed_window(100, Duration::from_secs(60)));
    let quota = Quota::fixed_window(1, HOUR);
    limiter.control().set_override("api", "all", quota, HOUR).await.unwrap();
    let tested = Tested::new(RateLimitLayer::new(gate, Key::constant("all")));
    let admitted = tested.get("ann").await;
    assert_eq!(admitted.header("ratelimit-policy"), Some(r#""api";q=1;w=3600"#));
    let denied = tested.get("ann").await;
    assert!(denied.body.contains("of 1 in 3600 seconds"), "{}", denied.body);
}

#[tokio::test]
async fn gates_in_code_are_checked_together_with_rules() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    let all = limiter.gate("all", Quota::fixed_window(3, HOUR));
    let tested = Tested::new(layer(&limiter, TWO_AN_HOUR).and(all, Key::constant("")));
    let reply = tested.get("k1").await;
    let names: Vec<_> = reply.limits().into_iter().map(|limit| limit.name).collect();
    assert_eq!(names, ["api.api_key", "all"]);
    tested.get("k1").await;
    assert!(tested.get("k1").await.body.contains("api.api_key"));
    assert_eq!(tested.get("k2").await.number("x-ratelimit-remaining"), 0);
    assert!(tested.get("k3").await.body.contains("\"all\""));
}

#[tokio::test]
async fn custom_response_can_name_the_rule() {
    let layer = layer(&Limiter::in_memory(), TWO_AN_HOUR).on_rejection(|_, refusal| async move {
        assert!(matches!(refusal.reason(), Reason::Denied(_)));
        let rule = refusal.rules_decision().unwrap().binding().unwrap().rule().unwrap();
        Response::new(format!("{} in line {}", rule.path(), rule.origin().1))
    });
    let tested = Tested::new(layer);
    tested.get("k").await;
    tested.get("k").await;
    assert_eq!(tested.get("k").await.body, "api.api_key in line 6");
}

#[tokio::test]
async fn client_without_an_address_is_handled_as_a_missing_key() {
    let text = "domain: api\nrate_limits: [{ actions: [{ remote_address: {} }] }]\ndescriptors: [{ key: remote_address, rate_limit: { unit: hour, requests_per_unit: 1 } }]";
    for (missing_key, statuses) in
        [(MissingKey::Reject, [500, 500]), (MissingKey::Share, [200, 429]), (MissingKey::Skip, [200, 200])]
    {
        let rules = Rules::parse("api.yaml", text).unwrap().bind(&Limiter::in_memory());
        let tested = Tested::new(RateLimitLayer::with_rules(rules, "api").unwrap().missing_key(missing_key));
        for status in statuses {
            assert_eq!(tested.send(request(&[])).await.status.as_u16(), status, "{missing_key:?}");
        }
    }
}

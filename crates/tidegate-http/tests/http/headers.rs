//! Rate limit headers, read by a parser for structured fields.

use std::time::Duration;

use http::StatusCode;
use proptest::prelude::*;
use tidegate::{Limiter, ManualClock, Quota, Rate};
use tidegate_http::{Draft, GateRule, Headers, Key, RateLimitLayer};

use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{Limit, Reply, Tested, by_key, request, unescaped};
use crate::support::fixture::quotas;
use crate::support::world::World;

const HOUR: Duration = Duration::from_secs(3_600);

fn hour(limiter: &Limiter, name: &str, limit: u64) -> GateRule {
    GateRule::new(limiter.gate(name, Quota::fixed_window(limit, HOUR)), by_key())
}

#[tokio::test]
async fn each_header_family_has_its_format() {
    let limiter = Limiter::in_memory();
    let all = |reply: &Reply| {
        let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        let names = names.into_iter().chain(["ratelimit-policy", "ratelimit", "retry-after"]);
        names.filter_map(|name| Some(format!("{name}: {}", reply.header(name)?))).collect::<Vec<_>>()
    };
    let x = ["x-ratelimit-limit: 100", "x-ratelimit-remaining: 99", "x-ratelimit-reset: 3600"];
    let seven = ["ratelimit-policy: 100;w=3600", "ratelimit: limit=100, remaining=99, reset=3600"];
    let eleven = [r#"ratelimit-policy: "api";q=100;w=3600"#, r#"ratelimit: "api";r=99;t=3600"#];
    for (headers, expected) in [
        (Headers::new(), [&x[..], &eleven].concat()),
        (Headers::new().draft(Some(Draft::Seven)), [&x[..], &seven].concat()),
        (Headers::new().draft(None), x.to_vec()),
        (Headers::none().draft(Some(Draft::Eleven)), eleven.to_vec()),
        (Headers::none().x_ratelimit(true), x.to_vec()),
        (Headers::none(), vec![]),
    ] {
        let rule = hour(&limiter, "api", 100);
        limiter.gate("api", Quota::fixed_window(100, HOUR)).reset("a").await.unwrap();
        let reply = Tested::new(RateLimitLayer::of([rule]).headers(headers)).get("a").await;
        assert_eq!(all(&reply), expected, "{headers:?}");
    }
}

#[tokio::test]
async fn calendar_window_is_reported_with_its_mean_length_and_its_exact_end() {
    // The clock begins at 2020-01-01 01:00 in Berlin.
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let month = Quota::calendar_window(1, "month@Europe/Berlin".parse().unwrap());
    let rule = GateRule::new(limiter.gate("api", month), by_key());
    let headers = Headers::none().draft(Some(Draft::Eleven)).retry_after(true);
    let tested = Tested::new(RateLimitLayer::of([rule]).headers(headers));
    let seconds = (31 * 24 - 1) * 3_600;
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let reply = tested.get("a").await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.header("ratelimit-policy").unwrap(), r#""api";q=1;w=2629746"#);
        assert_eq!(reply.header("ratelimit").unwrap(), format!(r#""api";r=0;t={seconds}"#));
        let expected = (status == StatusCode::TOO_MANY_REQUESTS).then(|| seconds.to_string());
        assert_eq!(reply.header("retry-after").map(str::to_owned), expected);
    }
}

/// The groups that clients of OpenAI read. Limits of other units, and in-flight limits, are in neither.
#[tokio::test]
async fn openai_headers_report_requests_and_tokens_by_the_units_of_the_rules() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let minute = |units| Quota::token_bucket(units, Rate::per_minute(units));
    let rules = || {
        let rule = |name, quota| GateRule::new(limiter.gate(name, quota), by_key());
        [
            rule("requests", minute(60)),
            rule("input", minute(40_000)).quota_unit("tokens").cost(|_| 1_000),
            rule("output", minute(8_000)).quota_unit("tokens").cost(|_| 2_000),
            rule("money", minute(5)).quota_unit("micro-usd").cost(|_| 5),
            rule("daily", Quota::fixed_window(400, 24 * HOUR)),
            rule("open", Quota::in_flight(1)),
        ]
    };
    let groups = |reply: &Reply| {
        ["limit", "remaining", "reset"].map(|value| {
            ["requests", "tokens"]
                .map(|unit| reply.header(&format!("x-ratelimit-{value}-{unit}")).unwrap().to_owned())
        })
    };
    let tested = Tested::new(RateLimitLayer::of(rules()).headers(Headers::none().openai(true)));
    let reply = tested.get("a").await;
    assert_eq!(groups(&reply), [["60", "8000"], ["59", "6000"], ["1s", "15s"]]);
    assert_eq!(reply.headers.len(), 6, "{:?}", reply.headers);
    // The money binds, and the groups still report their own limits.
    let denied = tested.get("a").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(groups(&denied), [["60", "8000"], ["59", "6000"], ["1s", "15s"]]);
    let none = Tested::new(RateLimitLayer::of(rules())).get("b").await;
    assert_eq!(none.header("x-ratelimit-limit-tokens"), None, "off by default");
    // Of nested layers, the tighter limit of a unit is reported.
    let outer = RateLimitLayer::of(rules().into_iter().skip(4).take(1)).headers(Headers::none().openai(true));
    let inner = RateLimitLayer::of(rules().into_iter().take(3)).headers(Headers::none().openai(true));
    let nested = outer.layer(inner.layer(service_fn(async |_: http::Request<String>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    })));
    let response = nested.oneshot(request("c")).await.unwrap();
    assert_eq!(response.headers()["x-ratelimit-limit-requests"], "60");
    assert_eq!(response.headers()["x-ratelimit-limit-tokens"], "8000");
}

#[tokio::test]
async fn wait_is_also_sent_under_another_name() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    for (name, headers, is_standard) in [
        ("api", Headers::new().wait_name("x-ratelimit-retry-after"), true),
        ("web", Headers::new().wait_name("x-ratelimit-retry-after").retry_after(false), false),
    ] {
        let tested = Tested::new(RateLimitLayer::of([hour(&limiter, name, 1)]).headers(headers));
        assert_eq!(tested.get("a").await.header("x-ratelimit-retry-after"), None);
        let denied = tested.get("a").await;
        assert_eq!(denied.header("x-ratelimit-retry-after"), Some("3600"));
        assert_eq!(denied.header("retry-after"), is_standard.then_some("3600"));
        let gate = limiter.gate(name, Quota::fixed_window(1, HOUR));
        let of_gate = headers.of(&gate, &gate.check("a").await.unwrap());
        assert_eq!(of_gate["x-ratelimit-retry-after"], "3600");
    }
}

#[test]
#[should_panic(expected = "\"X-Wait\" is not the name of a header in lower case")]
fn wait_name_in_upper_case_panics_where_it_is_set() {
    let _ = Headers::new().wait_name("X-Wait");
}

#[tokio::test]
async fn retry_after_can_be_disabled() {
    let limiter = Limiter::in_memory();
    for (headers, is_sent) in [(Headers::none(), false), (Headers::none().retry_after(true), true)] {
        let tested = Tested::new(RateLimitLayer::of([hour(&limiter, "api", 1)]).headers(headers));
        tested.get("a").await;
        let reply = tested.get("a").await;
        assert_eq!(
            (reply.status, reply.header("retry-after").is_some()),
            (StatusCode::TOO_MANY_REQUESTS, is_sent)
        );
    }
}

#[tokio::test]
async fn each_of_several_limits_is_reported() {
    let limiter = Limiter::in_memory();
    let rules = [hour(&limiter, "burst", 3), hour(&limiter, "daily", 1_000)];
    let minute = limiter.gate("minute", Quota::token_bucket(3, Rate::per_minute(3)));
    let layer = RateLimitLayer::of(rules).and(minute, Key::constant("all"));
    let tested = Tested::new(layer.clone());
    let limit = |name: &str, quota, window, remaining, reset| Limit {
        name: name.to_owned(),
        quota,
        window,
        remaining,
        reset,
    };
    let reply = tested.get("a").await;
    assert_eq!(
        reply.limits(),
        [
            limit("burst", 3, 3_600, 2, 3_600),
            limit("daily", 1_000, 3_600, 999, 3_600),
            limit("minute", 3, 60, 2, 20)
        ]
    );
    assert_eq!(reply.header("x-ratelimit-limit"), Some("3"), "the limit with the smallest share left");

    let seven = Tested::new(layer.headers(Headers::none().draft(Some(Draft::Seven))));
    let reply = seven.get("b").await;
    assert_eq!(reply.unnamed_policies(), [(3, 60), (1_000, 3_600)], "each number of units occurs once");
    assert_eq!(reply.unnamed_limit()[..2], [3, 1], "the limit with the smallest share left");
}

#[tokio::test]
async fn limit_that_binds_is_reported_and_not_the_fewest_of_unlike_units() {
    let limiter = Limiter::in_memory();
    let requests = || hour(&limiter, "requests", 60);
    let tokens = || hour(&limiter, "tokens", 1_000).cost(|_| 300);
    for draft in [Draft::Seven, Draft::Eleven] {
        let key = format!("{draft:?}");
        let headers = Headers::new().draft(Some(draft));
        let layer = |rules: Vec<GateRule>| RateLimitLayer::of(rules).headers(headers);
        let one = Tested::new(layer(vec![requests(), tokens()]));
        one.get(&key).await;
        let reply = one.get(&key).await;
        // 58 of 60 requests, and 400 of 1,000 tokens.
        let reported =
            |reply: &Reply| ["limit", "remaining"].map(|part| reply.number(&format!("x-ratelimit-{part}")));
        assert_eq!(reported(&reply), [1_000, 400], "{draft:?}");
        if draft == Draft::Seven {
            assert_eq!(reply.unnamed_limit()[..2], [1_000, 400]);
        }
        // The same in two layers, whichever is the inner one.
        for (outer, inner) in [(tokens(), requests()), (requests(), tokens())] {
            let service = Tested::new(layer(vec![inner]));
            let nested = Tested::with(layer(vec![outer]), move |request| {
                let service = service.clone();
                async move {
                    let reply = service.send(request).await;
                    let mut response = http::Response::new(reply.body);
                    *response.headers_mut() = reply.headers;
                    response
                }
            });
            limiter.gate("requests", Quota::fixed_window(60, HOUR)).reset(&*key).await.unwrap();
            limiter.gate("tokens", Quota::fixed_window(1_000, HOUR)).reset(&*key).await.unwrap();
            nested.get(&key).await;
            let reply = nested.get(&key).await;
            assert_eq!(reported(&reply), [1_000, 400], "{draft:?}");
            if draft == Draft::Seven {
                assert_eq!(reply.unnamed_limit()[..2], [1_000, 400]);
            }
        }
    }
}

#[tokio::test]
async fn nested_layers_merge_lists_and_report_the_tighter_limit() {
    let limiter = Limiter::in_memory();
    for (draft, inner, outer) in
        [(Draft::Eleven, 5, 9), (Draft::Eleven, 9, 5), (Draft::Seven, 5, 9), (Draft::Seven, 9, 5)]
    {
        let key = format!("{draft:?}{inner}");
        let headers = Headers::new().draft(Some(draft));
        let layer = |name, limit| RateLimitLayer::of([hour(&limiter, name, limit)]).headers(headers);
        let tested = Tested::with(layer("outer", outer), {
            let service = Tested::new(layer("inner", inner));
            move |request| {
                let service = service.clone();
                async move {
                    let reply = service.send(request).await;
                    let mut response = http::Response::new(reply.body);
                    *response.headers_mut() = reply.headers;
                    response
                }
            }
        });
        let reply = tested.get(&key).await;
        assert_eq!(reply.number("x-ratelimit-remaining"), 4, "{draft:?}");
        match draft {
            Draft::Eleven => {
                let names: Vec<_> = reply.limits().into_iter().map(|limit| limit.name).collect();
                assert_eq!(names, ["inner", "outer"]);
            }
            _ => {
                let mut policies = reply.unnamed_policies();
                policies.sort_unstable();
                assert_eq!(policies, [(5, 3_600), (9, 3_600)]);
                assert_eq!(reply.unnamed_limit()[..2], [5, 4]);
            }
        }
    }
}

#[tokio::test]
async fn limits_with_one_name_are_reported_as_the_tighter_one() {
    let limiter = Limiter::in_memory();
    let gate = limiter.gate("api", Quota::fixed_window(5, HOUR));
    let layer = RateLimitLayer::new(gate.clone(), by_key()).and(gate.clone(), Key::constant("all"));
    assert!(gate.check_cost("all", 2).await.unwrap().is_allowed());
    let limits = Tested::new(layer).get("a").await.limits();
    assert_eq!((limits.len(), limits[0].remaining), (1, 2));
}

#[tokio::test]
async fn limit_in_shadow_mode_is_not_reported() {
    let limiter = Limiter::in_memory();
    let trial = limiter.gate("trial", Quota::fixed_window(1, HOUR)).shadow(true);
    let api = hour(&limiter, "api", 9);
    let tested = Tested::new(RateLimitLayer::of([GateRule::new(trial.clone(), by_key()), api]));
    for left in ["8", "7", "6"] {
        let reply = tested.get("a").await;
        assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (StatusCode::OK, Some(left)));
        assert_eq!(reply.limits().iter().map(|limit| &*limit.name).collect::<Vec<_>>(), ["api"]);
    }
    for draft in [Draft::Seven, Draft::Eleven] {
        let headers = Headers::new().draft(Some(draft));
        let tested = Tested::new(RateLimitLayer::new(trial.clone(), by_key()).headers(headers));
        let reply = tested.get("a").await;
        assert_eq!(reply.status, StatusCode::OK);
        for name in ["x-ratelimit-limit", "ratelimit", "ratelimit-policy"] {
            assert_eq!(reply.header(name), None, "{draft:?}");
        }
    }
}

/// Generates quotas of each algorithm, with small and large limits and windows.
fn any_quota() -> impl Strategy<Value = Quota> {
    let limit = prop_oneof![1..20_u64, Just(1_000_000), Just(1 << 48)];
    let window = prop_oneof![1..5_000_u64, Just(60_000), Just(86_400_000), Just(315_360_000_000)];
    (limit, window, 0..6_usize).prop_filter_map("not a quota", |(limit, window, which)| {
        let window = Duration::from_millis(window);
        let rate = Rate::new(limit, window);
        match which {
            0 => Quota::try_token_bucket(limit, rate),
            1 => Quota::try_leaky_bucket(limit, rate),
            2 => Quota::try_fixed_window(limit, window),
            3 => Quota::try_fixed_window(limit, window).map(Quota::aligned_to_clock),
            4 => Quota::try_sliding_log(limit, window),
            _ => Quota::try_sliding_counter(limit, window),
        }
        .ok()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_name_and_any_quota_is_a_structured_field(name in any::<String>(), quota in any_quota(), checks in 1..4_u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let gate = Limiter::in_memory().gate("api", quota);
            for _ in 1..checks {
                let _ = gate.check("a").await;
            }
            for draft in [Draft::Seven, Draft::Eleven] {
                let rule = GateRule::new(gate.clone(), by_key()).name(&name);
                let layer = RateLimitLayer::of([rule]).headers(Headers::new().draft(Some(draft)));
                // A wait below a microsecond: a leaky bucket denies instead of delaying.
                let reply = Tested::new(layer.wait(Duration::from_nanos(1), 1)).get("a").await;
                let limit = i64::try_from(quota.limit()).unwrap();
                let remaining = i64::try_from(reply.number("x-ratelimit-remaining")).unwrap();
                prop_assert!(remaining < limit);
                if draft == Draft::Eleven {
                    let reported = reply.limits().remove(0);
                    prop_assert_eq!(unescaped(&reported.name), name.clone());
                    prop_assert_eq!((reported.quota, reported.remaining), (limit, remaining));
                    prop_assert_eq!(u64::try_from(reported.reset).unwrap(), reply.number("x-ratelimit-reset"));
                    let window = reported.window;
                    prop_assert!(
                        reported.reset <= window || quota.algorithm() == "sliding_counter",
                        "{quota}: {reported:?}"
                    );
                } else {
                    prop_assert_eq!(&reply.unnamed_limit()[..2], &[limit, remaining][..]);
                    prop_assert_eq!(reply.unnamed_policies()[0].0, limit);
                }
                if reply.status == StatusCode::TOO_MANY_REQUESTS {
                    let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
                    prop_assert_eq!(body["violated-policies"][0].as_str().unwrap(), &name);
                }
            }
            Ok(())
        })?;
    }
}

crate::support::behaviours! {
    async fn client_that_waits_as_reported_is_admitted(world) {
        wait_as_reported(world).await;
    }
}

/// Sends requests until one is denied, waits for the time in one of the headers, and sends again.
async fn wait_as_reported(world: &World) {
    let reported_waits: [fn(&Reply) -> u64; 3] = [
        |reply| reply.number("retry-after"),
        |reply| reply.number("x-ratelimit-reset"),
        |reply| u64::try_from(reply.limits()[0].reset).unwrap(),
    ];
    for window in [Duration::from_millis(700), Duration::from_millis(3_333), Duration::from_secs(60)] {
        for (name, quota) in quotas(3, window) {
            let name = format!("{name}.{}", window.as_millis());
            // A leaky bucket would delay requests on the manual clock, which does not advance by itself.
            let quota = if quota.has_queue() { Quota::token_bucket(3, Rate::new(3, window)) } else { quota };
            let tested = Tested::new(RateLimitLayer::new(world.gate(&name, quota), by_key()));
            for (round, wait) in reported_waits.into_iter().enumerate() {
                world.advance(Duration::from_millis(137));
                let key = format!("k{round}");
                let mut last = tested.get(&key).await;
                for _ in 0..4 {
                    assert_eq!(last.status == 429, last.header("retry-after").is_some());
                    if last.status == 429 {
                        break;
                    }
                    last = tested.get(&key).await;
                }
                assert_eq!(last.status, 429, "{quota}");
                for _ in 0..3 {
                    world.advance(Duration::from_secs(wait(&last)));
                    let back = tested.get(&key).await;
                    assert_eq!(back.status, 200, "{quota}, waited as in header {round}: {last:?}");
                    last = back;
                    while last.status == 200 {
                        last = tested.get(&key).await;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn client_with_nothing_remaining_is_admitted_after_reset() {
    let world = World::memory();
    for (name, quota) in quotas(3, Duration::from_millis(2_500)) {
        if quota.has_queue() {
            continue;
        }
        let tested = Tested::new(RateLimitLayer::new(world.gate(name, quota), by_key()));
        for _ in 0..20 {
            let reply = tested.get("a").await;
            assert_eq!(reply.status, 200, "{quota}");
            if reply.number("x-ratelimit-remaining") == 0 {
                world.advance(Duration::from_secs(reply.number("x-ratelimit-reset")));
            }
        }
    }
}

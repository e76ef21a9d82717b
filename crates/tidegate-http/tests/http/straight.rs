//! A request whose charge is final takes a path of its own. One that would be refunded if its client left takes the general
//! path, and gets the same response.

use std::time::Duration;

use http::{Request, Response};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::{Decision, Limiter, ManualClock, Quota};
use tidegate_http::{Abandoned, Charge, Draft, GateRule, Headers, MissingKey, RateLimitLayer};

use super::fixture::{Tested, by_key};
use crate::support::fixture::quotas;

/// One request, and the time after it.
#[derive(Clone, Debug)]
struct Step {
    key: Option<&'static str>,
    cost: u64,
    pause_s: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key =
        prop_oneof![Just(None), Just(Some("a")), Just(Some("b")), Just(Some("a long key \" with \\ and %"))];
    let step = (key, 0..5_u64, 0..30_u64);
    vec(step.prop_map(|(key, cost, pause_s)| Step { key, cost, pause_s }), 1..20)
}

fn headers() -> impl Strategy<Value = Headers> {
    let draft = prop_oneof![Just(None), Just(Some(Draft::Seven)), Just(Some(Draft::Eleven))];
    let flags = (any::<bool>(), draft, any::<bool>(), any::<bool>());
    flags.prop_map(|(x_ratelimit, draft, openai, shadow)| {
        Headers::new().x_ratelimit(x_ratelimit).draft(draft).openai(openai).shadow(shadow)
    })
}

/// Returns a service whose response shows what its handler was told.
fn tested(layer: RateLimitLayer) -> Tested {
    Tested::with(layer, |request: Request<String>| {
        let decision = request.extensions().get::<Decision>().map(|decision| format!("{decision:?}"));
        std::future::ready(Response::new(decision.unwrap_or_default()))
    })
}

proptest! {
    #[test]
    fn both_paths_respond_alike(
        steps in steps(),
        headers in headers(),
        quota in 0..6_usize,
        has_second in any::<bool>(),
        (is_shadow, is_named) in any::<(bool, bool)>(),
        missing_key in prop_oneof![Just(MissingKey::Reject), Just(MissingKey::Skip), Just(MissingKey::Share)],
    ) {
        let clock = ManualClock::new();
        let rules = || {
            let limiter = Limiter::in_memory_with(clock.clone());
            let (name, quota) = quotas(3, Duration::from_secs(60))[quota];
            let gate = limiter.gate(name, quota).shadow(is_shadow);
            let cost = |parts: &http::request::Parts| {
                parts.headers.get("x-cost").and_then(|cost| cost.to_str().ok()?.parse().ok()).unwrap_or(1)
            };
            let rule = GateRule::new(gate, by_key()).cost(cost);
            let first = match is_named {
                true => rule.name("naïve \"name\"").quota_unit("tokens").partition_key([7; 32]),
                false => rule,
            };
            let day = limiter.gate("day", Quota::fixed_window(5, Duration::from_secs(86_400)));
            let second = has_second.then(|| GateRule::new(day, by_key()));
            std::iter::once(first).chain(second).collect::<Vec<_>>()
        };
        let straight = RateLimitLayer::of(rules());
        let general = RateLimitLayer::of(rules()).charge(Charge::always().if_abandoned(Abandoned::Refunded));
        let services = [straight, general].map(|layer| tested(layer.headers(headers).missing_key(missing_key)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for step in steps {
                let request = || {
                    let request = Request::builder().header("x-cost", step.cost);
                    let request = step.key.into_iter().fold(request, |it, key| it.header("x-api-key", key));
                    request.body(String::new()).unwrap()
                };
                let [straight, general] = &services;
                let (straight, general) = (straight.begin(request()).await, general.begin(request()).await);
                // A leaky bucket delays its requests by at most a minute.
                if !straight.is_finished() {
                    clock.advance(Duration::from_secs(60));
                }
                let (straight, general) = (straight.await.unwrap(), general.await.unwrap());
                prop_assert_eq!(straight.status, general.status);
                prop_assert_eq!(&straight.headers, &general.headers);
                prop_assert_eq!(straight.body, general.body);
                clock.advance(Duration::from_secs(step.pause_s));
            }
            Ok(())
        })?;
    }
}

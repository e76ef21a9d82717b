//! Rates and in-flight limits in one layer, all or nothing.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use tidegate::{Gate, Limiter, Quota, Rate, Switch};
use tidegate_http::{Charge, GateRule, Key, RateLimitLayer, Usage};
use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{Codes, Open, data, held, holds, memory, stores};
use crate::http::fixture::{Tested, by_key, request};
use crate::support::fixture::{HOUR, PATIENCE, soon};

/// A tenant's slots and rate, and the slots of all tenants, over one store.
struct Limits {
    tenant: Gate,
    all: Gate,
    rate: Gate,
}

impl Limits {
    fn new(limiter: &Limiter) -> Self {
        Self {
            tenant: limiter.gate("tenant", Quota::in_flight(2)),
            all: limiter.gate("all", Quota::in_flight(3)),
            rate: limiter.gate("rate", Quota::fixed_window(10, HOUR)),
        }
    }

    /// The keys of all rules are in one header, so that the tests can choose them.
    fn layer(&self) -> RateLimitLayer {
        RateLimitLayer::of([
            GateRule::new(self.tenant.clone(), by_key()),
            GateRule::new(self.all.clone(), Key::constant("a")),
            GateRule::new(self.rate.clone(), by_key()),
        ])
    }

    async fn used(&self) -> u64 {
        10 - self.rate.peek("a").await.unwrap().remaining()
    }
}

#[tokio::test]
async fn denied_group_holds_and_charges_nothing() {
    let (_server, stores) = stores();
    for limiter in stores {
        let limits = Limits::new(&limiter);
        let first = Open::begin(limits.layer()).await;
        let second = Open::begin(limits.layer()).await;
        assert_eq!((held(&limits.tenant).await, held(&limits.all).await, limits.used().await), (2, 2, 2));

        let tested = Tested::new(limits.layer());
        let reply = tested.get("a").await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(reply.body.contains("\"violated-policies\":[\"tenant\"]"), "{}", reply.body);
        assert_eq!((held(&limits.tenant).await, held(&limits.all).await, limits.used().await), (2, 2, 2));

        drop(second);
        holds(&limits.all, 1, "one has ended").await;
        let _ = limits.rate.check_cost("a", 8).await.unwrap();
        assert_eq!(tested.get("a").await.status, StatusCode::TOO_MANY_REQUESTS, "denied by the rate");
        assert_eq!((held(&limits.tenant).await, held(&limits.all).await), (1, 1));
        drop(first);
        holds(&limits.tenant, 0, "all have ended").await;
        holds(&limits.all, 0, "all have ended").await;
        assert_eq!(tested.calls(), 0);
    }
}

#[tokio::test]
async fn charge_of_a_rate_is_settled_beside_a_permit() {
    let (_server, stores) = stores();
    for limiter in stores {
        let limits = Limits::new(&limiter);
        let layer = || limits.layer().cost(|_| 5).charge(Charge::bytes(1));
        let mut open = Open::begin(layer()).await;
        assert_eq!(held(&limits.tenant).await, 1, "the layer's cost is not that of slots");
        open.send(data("seven b")).await.unwrap().unwrap();
        assert_eq!(limits.used().await, 5);
        open.end().await;
        soon("the bytes are charged", async || limits.used().await == 7).await;
        holds(&limits.tenant, 0, "settled").await;
        assert_eq!(limits.used().await, 7);
    }
}

#[tokio::test]
async fn cost_of_a_rule_is_the_number_of_its_slots() {
    let (_server, stores) = stores();
    for limiter in stores {
        let gate = limiter.gate("tenant", Quota::in_flight(3));
        let cost = |units| RateLimitLayer::of([GateRule::new(gate.clone(), by_key()).cost(move |_| units)]);
        let open = Open::begin(cost(2)).await;
        assert_eq!(held(&gate).await, 2);
        assert_eq!(Tested::new(cost(2)).get("a").await.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(Tested::new(cost(1)).get("a").await.status, StatusCode::OK);
        assert_eq!(Tested::new(cost(4)).get("a").await.status, StatusCode::BAD_REQUEST);
        assert_eq!(Tested::new(cost(0)).get("a").await.header("ratelimit"), None, "the rule does not apply");
        drop(open);
        holds(&gate, 0, "all have ended").await;
    }
}

#[tokio::test]
async fn gate_in_shadow_mode_denies_nothing() {
    let (_server, stores) = stores();
    for limiter in stores {
        let gate = limiter.gate("tenant", Quota::in_flight(1)).shadow(true);
        let rate = limiter.gate("rate", Quota::token_bucket(9, Rate::per_second(9)));
        let alone = || RateLimitLayer::new(gate.clone(), by_key());
        for layer in [alone(), alone().and(rate, by_key())] {
            let first = Open::begin(layer.clone()).await;
            assert_eq!(held(&gate).await, 1);
            let second = Open::begin(layer).await;
            drop((first, second));
            holds(&gate, 0, "both have ended").await;
        }
    }
}

#[tokio::test]
async fn switches_of_operators_apply() {
    let limiter = memory();
    let limits = Limits::new(&limiter);
    let control = limiter.control();
    let tested = Tested::new(limits.layer());
    control.switch("tenant", Switch::Closed, None).await.unwrap();
    assert_eq!(tested.get("a").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((held(&limits.all).await, limits.used().await), (0, 0), "the others hold nothing");
    control.switch("tenant", Switch::Open, None).await.unwrap();
    let open = [Open::begin(limits.layer()).await, Open::begin(limits.layer()).await];
    let third = Open::begin(limits.layer()).await;
    control.end_switch("tenant").await.unwrap();
    drop((open, third));
    holds(&limits.all, 0, "all have ended").await;
    holds(&limits.tenant, 0, "all have ended").await;
}

#[tokio::test]
async fn usage_counts_only_rates() {
    let limiter = memory();
    let limits = Limits::new(&limiter);
    let tested = Tested::with(limits.layer().charge(Charge::usage()), |request| {
        let usage: &Usage = request.extensions().get().unwrap();
        assert_eq!(usage.reserved(), 1);
        usage.set(4);
        std::future::ready(http::Response::new("hello".to_owned()))
    });
    assert_eq!(tested.send(request("a")).await.status, StatusCode::OK);
    soon("the usage is charged", async || limits.used().await == 4).await;
    holds(&limits.tenant, 0, "ended").await;
}

#[test]
#[should_panic = "a charge does not apply to an in-flight limit"]
fn charge_of_an_in_flight_rule_is_refused() {
    let gate = memory().gate("tenant", Quota::in_flight(2));
    let _ = GateRule::new(gate, by_key()).charge(Charge::always());
}

#[tokio::test]
async fn gate_of_nested_layers_is_a_warning() {
    let codes = Codes::default();
    let limiter = Limiter::builder().in_memory().deadline(PATIENCE).observer(codes.clone()).build().unwrap();
    let limits = Limits::new(&limiter);
    let nested = |outer: &Gate, inner: &Gate| {
        let layer = |gate: &Gate| RateLimitLayer::new(gate.clone(), by_key());
        let hello = |_: Request<String>| async { Ok::<_, Infallible>(Response::new("hello".to_owned())) };
        layer(outer).layer(layer(inner).layer(service_fn(hello)))
    };
    for (inner, expected) in [(&limits.all, &[][..]), (&limits.tenant, &["gate-charged-twice"])] {
        let response = nested(&limits.tenant, inner).oneshot(request("a")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        drop(response);
        assert_eq!(codes.take(), expected);
        holds(&limits.tenant, 0, "the request has ended").await;
    }
}

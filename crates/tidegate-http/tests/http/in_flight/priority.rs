//! Slots that are reserved for critical requests.

use std::panic::catch_unwind;
use std::time::Duration;

use http::{Request, StatusCode};
use tidegate::{Gate, Quota, Rate};
use tidegate_http::{GateRule, RateLimitLayer};

use super::fixture::{Open, gates, held, holds, memory};
use crate::http::fixture::{Tested, by_key, request, settle};

fn critical() -> Request<String> {
    let mut request = request("a");
    request.headers_mut().insert("x-critical", "yes".parse().unwrap());
    request
}

fn rule(gate: &Gate, share: f64) -> GateRule {
    GateRule::new(gate.clone(), by_key()).reserve_for(|parts| parts.headers.contains_key("x-critical"), share)
}

fn layer(gate: &Gate, share: f64) -> RateLimitLayer {
    RateLimitLayer::of([rule(gate, share)])
}

async fn begin(layer: &RateLimitLayer, request: Request<String>) -> Open {
    Open::begin_with(layer.clone(), request, StatusCode::OK, None).await
}

#[tokio::test]
async fn others_are_shed_before_critical_requests() {
    let (_server, gates) = gates();
    for gate in gates {
        let (layer, mut open) = (layer(&gate, 0.2), Vec::new());
        let tested = Tested::new(layer.clone());
        for _ in 0..8 {
            open.push(begin(&layer, request("a")).await);
        }
        let shed = tested.send(request("a")).await;
        assert_eq!(shed.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(shed.header("ratelimit-policy"), Some(r#""uploads";q=8;qu="concurrent-requests""#));
        for _ in 0..2 {
            open.push(begin(&layer, critical()).await);
        }
        assert_eq!(tested.send(critical()).await.status, StatusCode::TOO_MANY_REQUESTS, "all 10 are held");
        assert_eq!(held(&gate).await, 10);
        // Critical requests may use all slots, and others then use none.
        open.truncate(1);
        holds(&gate, 1, "one is left").await;
        for _ in 0..8 {
            open.push(begin(&layer, critical()).await);
        }
        assert_eq!(tested.send(request("a")).await.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(tested.send(critical()).await.status, StatusCode::OK);
        drop(open);
        holds(&gate, 0, "all have ended").await;
    }
}

#[tokio::test]
async fn override_of_the_limit_keeps_the_share() {
    let limiter = memory();
    let gate = limiter.gate("uploads", Quota::in_flight(10));
    let layer = layer(&gate, 0.5);
    for (limit, open_slots) in [(4, 2), (1, 1), (20, 10)] {
        let (control, lasts) = (limiter.control(), Duration::from_secs(60));
        control.set_override("uploads", "a", Quota::in_flight(limit), lasts).await.unwrap();
        let mut open = Vec::new();
        for _ in 0..open_slots {
            open.push(begin(&layer, request("a")).await);
        }
        let shed = Tested::new(layer.clone()).send(request("a")).await;
        assert_eq!(shed.status, StatusCode::TOO_MANY_REQUESTS, "{limit}");
        drop(open);
        holds(&gate, 0, "all have ended").await;
    }
}

#[tokio::test]
async fn waiting_requests_do_not_delay_critical_ones() {
    let (_server, gates) = gates();
    for gate in gates {
        let layer = layer(&gate, 0.2).wait(Duration::from_secs(30), 100);
        let mut open = Vec::new();
        for _ in 0..8 {
            open.push(begin(&layer, request("a")).await);
        }
        let tested = Tested::new(layer.clone());
        let waiting = tested.begin(request("a")).await;
        settle().await;
        assert!(!waiting.is_finished());
        assert_eq!(tested.send(critical()).await.status, StatusCode::OK);
        assert!(!waiting.is_finished());
        open.pop();
        assert_eq!(waiting.await.unwrap().status, StatusCode::OK);
        drop(open);
        holds(&gate, 0, "all have ended").await;
    }
}

#[tokio::test]
async fn share_that_is_no_decimal_reserves_no_slot_too_many() {
    let cases = [(3, 1.0 / 3.0, 2), (3, 2.0 / 3.0, 1), (300, 1.0 / 3.0, 200), (300, 2.0 / 3.0, 100)];
    for (limit, share, open_slots) in cases.into_iter().chain([(7, 1.0 / 7.0, 6), (700, 1.0 / 7.0, 600)]) {
        let gate = memory().gate("uploads", Quota::in_flight(limit));
        let reply = Tested::new(layer(&gate, share)).get("a").await;
        let policy = format!(r#""uploads";q={open_slots};qu="concurrent-requests""#);
        assert_eq!(reply.header("ratelimit-policy"), Some(&*policy), "{share} of {limit}");
        holds(&gate, 0, "the request has ended").await;
    }
}

#[test]
fn share_without_a_slot_for_each_kind_is_refused() {
    let limiter = memory();
    let gate = |quota| limiter.gate("uploads", quota);
    let message = |quota: Quota, share: f64| {
        let gate = gate(quota);
        let refused = catch_unwind(std::panic::AssertUnwindSafe(|| drop(rule(&gate, share))));
        refused.err().map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
    };
    for (limit, share) in [(2, 0.5), (10, 0.05), (10, 0.9), (1_000_000_000_000, 0.000_001)] {
        assert_eq!(message(Quota::in_flight(limit), share), None, "{limit}, {share}");
    }
    for (limit, share) in [(10, 0.0), (10, 1.0), (10, -0.1), (10, 1.5), (10, f64::NAN)] {
        let text = message(Quota::in_flight(limit), share).unwrap();
        assert!(text.contains("a share above 0 and below 1"), "{text}");
    }
    for (limit, share) in [(1, 0.5), (2, 0.6), (10, 0.91)] {
        let text = message(Quota::in_flight(limit), share).unwrap();
        assert!(text.contains("leaves no slot"), "{text}");
    }
    assert!(message(Quota::token_bucket(10, Rate::per_second(10)), 0.2).is_some());
}

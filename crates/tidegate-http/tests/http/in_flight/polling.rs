//! Requests that wait for a permit and other limits poll: how often, for how long, and in front of which others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tidegate::{Event, Limiter, ManualClock, Observer, OnFailure, Quota, Rate, Stub};
use tidegate_http::{GateRule, Key, RateLimitLayer};

use super::fixture::{Open, held, holds, memory_with, stores};
use crate::http::fixture::{Tested, by_key, request, settle};
use crate::support::fixture::{PATIENCE, builder_as_is, soon};

const SECOND: Duration = Duration::from_secs(1);

/// Counts denials.
#[derive(Clone, Default)]
struct Denials(Arc<AtomicUsize>);

impl Observer for Denials {
    fn on(&self, event: &Event<'_>) {
        if let Event::Decided(decision) = event {
            self.0.fetch_add(usize::from(!decision.is_allowed()), Ordering::SeqCst);
        }
    }
}

impl Denials {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// Moves the clock in steps of 5 ms, so that each timer runs when it is due.
async fn advance(clock: &ManualClock, by: Duration) {
    for _ in 0..by.as_millis() / 5 {
        clock.advance(Duration::from_millis(5));
        settle().await;
    }
}

#[tokio::test]
async fn waiting_group_does_not_delay_requests_of_other_keys() {
    let (_server, stores) = stores();
    for limiter in stores {
        let tenant = limiter.gate("tenant", Quota::in_flight(2));
        let all = limiter.gate("all", Quota::in_flight(3));
        let layer = RateLimitLayer::new(tenant.clone(), by_key()).and(all.clone(), Key::constant("a"));
        let layer = layer.wait(60 * SECOND, 100);
        let mut open = vec![Open::begin(layer.clone()).await, Open::begin(layer.clone()).await];
        let tested = Tested::new(layer);
        let waiting = tested.begin(request("a")).await;
        for _ in 0..3 {
            let other = tested.begin(request("b")).await;
            soon("another tenant enters", async || other.is_finished()).await;
            assert_eq!(other.await.unwrap().status, StatusCode::OK);
        }
        assert!(!waiting.is_finished());
        assert_eq!(tested.calls(), 3);
        open.pop();
        soon("the tenant's request enters", async || waiting.is_finished()).await;
        assert_eq!(waiting.await.unwrap().status, StatusCode::OK);
        drop(open);
        holds(&tenant, 0, "all have ended").await;
        holds(&all, 0, "all have ended").await;
    }
}

#[tokio::test]
async fn polls_become_rare() {
    let (clock, denials) = (ManualClock::new(), Denials::default());
    let limiter = Limiter::builder().in_memory().manual_clock(clock.clone()).deadline(PATIENCE);
    let limiter = limiter.observer(denials.clone()).build().unwrap();
    let gate = limiter.gate("uploads", Quota::in_flight(2));
    let other = limiter.gate("all", Quota::in_flight(9));
    let restricted = GateRule::new(gate.clone(), by_key()).reserve_for(|_| false, 0.5);
    let group = RateLimitLayer::new(gate.clone(), by_key()).and(other, by_key());
    for (layer, slots) in [(RateLimitLayer::of([restricted]), 1), (group, 2)] {
        let layer = layer.wait(60 * SECOND, 10);
        let mut open = Vec::new();
        for _ in 0..slots {
            open.push(Open::begin(layer.clone()).await);
        }
        let waiting = Tested::new(layer).begin(request("a")).await;
        denials.take();
        advance(&clock, SECOND).await;
        let first = denials.take();
        advance(&clock, SECOND).await;
        let second = denials.take();
        assert!((6..=12).contains(&first), "{first} polls in the first second");
        assert!((3..=5).contains(&second), "{second} polls in the next second");
        drop(open);
        advance(&clock, SECOND / 2).await;
        assert!(waiting.is_finished());
        assert_eq!(waiting.await.unwrap().status, StatusCode::OK);
    }
}

#[tokio::test]
async fn denials_without_a_wait_are_not_repeated_at_once() {
    // No server listens at this address.
    let unavailable = |denials: &Denials| {
        let builder = builder_as_is("redis://127.0.0.1:1").on_failure(OnFailure::Closed);
        builder.observer(denials.clone()).build().unwrap()
    };
    let denials = Denials::default();
    for limiter in [unavailable(&denials), Limiter::stub(Stub::Deny)] {
        let gate = limiter.gate("uploads", Quota::in_flight(2));
        let layer = RateLimitLayer::new(gate, by_key()).wait(SECOND / 5, 10);
        let waiting = Tested::new(layer).begin(request("a")).await;
        assert!(!waiting.is_finished(), "the thread is not blocked");
        assert_eq!(waiting.await.unwrap().status, StatusCode::TOO_MANY_REQUESTS);
    }
    let denials = denials.take();
    assert!((1..10).contains(&denials), "{denials} denials");
}

#[tokio::test]
async fn wait_for_a_slot_shortens_the_delay_that_a_request_accepts() {
    let clock = ManualClock::new();
    let limiter = memory_with(&clock);
    let gate = limiter.gate("uploads", Quota::in_flight(1));
    let smooth = limiter.gate("smooth", Quota::leaky_bucket(5, Rate::new(1, 5 * SECOND)));
    let layer = RateLimitLayer::new(gate.clone(), by_key()).and(smooth.clone(), by_key());
    let layer = layer.wait(10 * SECOND, 10);
    let open = Open::begin(layer.clone()).await;
    let tested = Tested::new(layer);
    let waiting = tested.begin(request("a")).await;
    advance(&clock, 8 * SECOND).await;
    assert!(!waiting.is_finished());
    assert!(
        smooth.check("a").await.unwrap().delay().is_zero(),
        "a waiting request has no place in the bucket"
    );
    drop(open);
    advance(&clock, 3 * SECOND).await;
    assert!(waiting.is_finished(), "a delay of 5 s exceeds what is left of 10 s");
    assert_eq!(waiting.await.unwrap().status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((tested.calls(), held(&gate).await), (0, 0));
}

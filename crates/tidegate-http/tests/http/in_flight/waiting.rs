//! Requests that wait for a permit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tidegate::{Gate, Limiter, ManualClock, Quota, Switch};
use tidegate_http::RateLimitLayer;
use tokio::task::JoinHandle;

use super::fixture::{Open, held, holds, memory_with, stores};
use crate::http::fixture::{Reply, Tested, by_key, request, settle};
use crate::support::fixture::{HOUR, builder, namespace, soon};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a gate of one slot for each store.
fn gates() -> (Arc<tidegate_testkit::Server>, [Gate; 2]) {
    let (server, stores) = stores();
    (server, stores.map(|limiter| limiter.gate("uploads", Quota::in_flight(1))))
}

fn layer(gate: &Gate) -> RateLimitLayer {
    RateLimitLayer::new(gate.clone(), by_key()).wait(60 * SECOND, 100)
}

/// Waits until the request is done.
async fn reply(sent: JoinHandle<Reply>) -> Reply {
    soon("the request enters", async || sent.is_finished()).await;
    sent.await.unwrap()
}

#[tokio::test]
async fn waiting_requests_enter_one_by_one_in_arrival_order() {
    let clock = ManualClock::new();
    let gate = memory_with(&clock).gate("uploads", Quota::in_flight(1));
    let layer = layer(&gate);
    let entered = Arc::new(Mutex::new(Vec::new()));
    let recorded = entered.clone();
    let tested = Tested::with(layer.clone(), move |request: Request<String>| {
        recorded.lock().unwrap().push(request.into_body());
        std::future::ready(Response::new("hello".to_owned()))
    });
    let open = Open::begin(layer).await;
    let mut waiting = Vec::new();
    for at in 0..10 {
        waiting.push(tested.begin(request("a").map(|_| at.to_string())).await);
    }
    assert_eq!((tested.calls(), held(&gate).await), (0, 1));
    drop(open);
    advance(&clock, SECOND).await;
    for sent in waiting {
        assert!(sent.is_finished());
        assert_eq!(sent.await.unwrap().status, StatusCode::OK);
    }
    assert_eq!(entered.lock().unwrap().concat(), "0123456789");
    assert_eq!(held(&gate).await, 0);
}

#[tokio::test]
async fn several_slots_are_filled_at_once() {
    let (_server, gates) = gates();
    for gate in gates {
        let gate = gate.limiter().gate("several", Quota::in_flight(5));
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(Open::begin(layer(&gate)).await);
        }
        let tested = Tested::new(layer(&gate));
        let mut waiting = Vec::new();
        for _ in 0..40 {
            waiting.push(tested.begin(request("a")).await);
        }
        drop(open);
        for sent in waiting {
            assert_eq!(reply(sent).await.status, StatusCode::OK);
        }
        holds(&gate, 0, "all have ended").await;
    }
}

#[tokio::test]
async fn permit_of_another_process_is_awaited() {
    let server = tidegate_testkit::shared();
    let namespace = namespace();
    let process = || builder(server.url()).namespace(&namespace).build().unwrap();
    let gate = |limiter: &Limiter| limiter.gate("uploads", Quota::in_flight(1));
    let (here, there) = (process(), process());
    let open = Open::begin(layer(&gate(&there))).await;
    let waiting = Tested::new(layer(&gate(&here))).begin(request("a")).await;
    settle().await;
    assert!(!waiting.is_finished());
    drop(open);
    assert_eq!(reply(waiting).await.status, StatusCode::OK);
    holds(&gate(&here), 0, "all have ended").await;
}

#[tokio::test]
async fn request_that_waits_for_a_slot_and_a_rate_gets_both() {
    let (_server, gates) = gates();
    for gate in gates {
        let rate = gate.limiter().gate("rate", Quota::fixed_window(2, HOUR));
        let both = layer(&gate).and(rate.clone(), by_key());
        let open = Open::begin(both.clone()).await;
        let tested = Tested::new(both);
        let waiting = tested.begin(request("a")).await;
        assert_eq!(rate.peek("a").await.unwrap().remaining(), 1, "a waiting request is charged nothing");
        drop(open);
        assert_eq!(reply(waiting).await.status, StatusCode::OK);
        assert_eq!(rate.peek("a").await.unwrap().remaining(), 0);
        let denied = tested.get("a").await;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS, "the next window is too far away");
        holds(&gate, 0, "all have ended").await;
    }
}

#[tokio::test]
async fn abandoned_request_leaves_no_trace_in_the_queue() {
    let (_server, gates) = gates();
    for gate in gates {
        let open = Open::begin(layer(&gate)).await;
        let tested = Tested::new(layer(&gate));
        let (first, second) = (tested.begin(request("a")).await, tested.begin(request("a")).await);
        let third = tested.begin(request("a")).await;
        first.abort();
        second.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        drop(open);
        assert_eq!(reply(third).await.status, StatusCode::OK);
        assert_eq!(tested.calls(), 1);
        holds(&gate, 0, "all have ended").await;
    }
}

/// Moves the clock in small steps, so that each timer runs when it is due.
async fn advance(clock: &ManualClock, by: Duration) {
    for _ in 0..20 {
        clock.advance(by / 20);
        settle().await;
    }
}

#[tokio::test]
async fn wait_ends_after_its_maximum() {
    let clock = ManualClock::new();
    let gate = memory_with(&clock).gate("uploads", Quota::in_flight(1));
    let layer = || RateLimitLayer::new(gate.clone(), by_key()).wait(SECOND / 100, 10);
    let open = Open::begin(layer()).await;
    let waiting = Tested::new(layer()).begin(request("a")).await;
    assert!(!waiting.is_finished(), "the retry time is a hint, so it does not make the wait too long");
    advance(&clock, SECOND / 50).await;
    let denied = waiting.await.unwrap();
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("1")));
    assert_eq!(held(&gate).await, 1);
    drop(open);
    advance(&clock, SECOND / 50).await;
    assert_eq!(held(&gate).await, 0);
}

#[tokio::test]
async fn switch_ends_the_wait() {
    for (switch, status) in
        [(Switch::Closed, StatusCode::SERVICE_UNAVAILABLE), (Switch::Open, StatusCode::OK)]
    {
        let clock = ManualClock::new();
        let limiter = memory_with(&clock);
        let gate = limiter.gate("uploads", Quota::in_flight(1));
        let open = Open::begin(layer(&gate)).await;
        let waiting = Tested::new(layer(&gate)).begin(request("a")).await;
        assert!(!waiting.is_finished());
        limiter.control().switch("uploads", switch, None).await.unwrap();
        advance(&clock, 2 * SECOND).await;
        assert!(waiting.is_finished(), "{switch:?}");
        assert_eq!(waiting.await.unwrap().status, status);
        drop(open);
    }
}

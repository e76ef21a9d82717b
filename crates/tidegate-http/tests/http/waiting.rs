//! Requests in the wait queue.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tidegate::{Gate, Limiter, ManualClock, Quota, Rate, Source};
use tidegate_http::{Key, RateLimitLayer};
use tokio::task::JoinHandle;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{Reply, Tested, by_key, request, settle};
use crate::support::fixture::{HOUR, builder, limiter, quotas};

const SECOND: Duration = Duration::from_secs(1);

/// A service on a clock that the test moves. Records the name and time in ms of each request that arrives.
pub(super) struct QueuedService {
    pub(super) clock: ManualClock,
    pub(super) limiter: Limiter,
    tested: Tested,
    arrivals: Arc<Mutex<Vec<(String, u64)>>>,
}

impl QueuedService {
    pub(super) fn new(quota: Quota, layer: impl FnOnce(Gate) -> RateLimitLayer) -> Self {
        let clock = ManualClock::new();
        let (start, arrivals) = (clock.now(), Arc::new(Mutex::new(Vec::new())));
        let limiter = Limiter::in_memory_with(clock.clone());
        let gate = limiter.gate("api", quota);
        let (recorded, service_clock) = (arrivals.clone(), clock.clone());
        let tested = Tested::with(layer(gate), move |request: Request<String>| {
            let name = request.uri().path()[1..].to_owned();
            let arrived_ms = (service_clock.now() - start).as_millis() as u64;
            recorded.lock().unwrap().push((name, arrived_ms));
            std::future::ready(Response::new(String::new()))
        });
        Self { clock, limiter, tested, arrivals }
    }

    /// Sends a request for key `a`, and runs it until it waits for the clock.
    pub(super) async fn send(&self, name: &str) -> JoinHandle<Reply> {
        self.send_for("a", name).await
    }

    pub(super) async fn send_for(&self, key: &str, name: &str) -> JoinHandle<Reply> {
        let request = Request::get(format!("/{name}")).header("x-api-key", key).body(String::new()).unwrap();
        self.tested.begin(request).await
    }

    pub(super) async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        settle().await;
    }

    pub(super) fn arrivals(&self) -> Vec<(String, u64)> {
        self.arrivals.lock().unwrap().clone()
    }
}

pub(super) fn each_second(burst: u64) -> Quota {
    Quota::token_bucket(burst, Rate::per_second(1))
}

pub(super) fn arrivals(names: &[(&str, u64)]) -> Vec<(String, u64)> {
    names.iter().map(|&(name, at)| (name.to_owned(), at)).collect()
}

#[tokio::test]
async fn waiting_requests_enter_in_arrival_order() {
    let service =
        QueuedService::new(each_second(2), |gate| RateLimitLayer::new(gate, by_key()).wait(10 * SECOND, 10));
    let mut sent = Vec::new();
    for name in ["1", "2", "3", "4", "5"] {
        sent.push(service.send(name).await);
    }
    service.advance(SECOND).await;
    sent.push(service.send("6").await);
    for _ in 0..3 {
        service.advance(SECOND).await;
    }
    let expected = arrivals(&[("1", 0), ("2", 0), ("3", 1_000), ("4", 2_000), ("5", 3_000), ("6", 4_000)]);
    assert_eq!(service.arrivals(), expected);
    for sent in sent {
        assert_eq!(sent.await.unwrap().status, StatusCode::OK);
    }
}

#[tokio::test]
async fn request_that_would_wait_too_long_is_denied_at_once() {
    let service = QueuedService::new(each_second(1), |gate| {
        RateLimitLayer::new(gate, by_key()).wait(Duration::from_millis(999), 10)
    });
    service.send("1").await.await.unwrap();
    let denied = service.send("2").await;
    assert!(denied.is_finished());
    assert_eq!(denied.await.unwrap().header("retry-after"), Some("1"));
    service.clock.advance(Duration::from_millis(1));
    let waits = service.send("3").await;
    assert!(!waits.is_finished());
    service.advance(Duration::from_millis(999)).await;
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn request_behind_too_many_others_is_denied_at_once() {
    for (name, quota) in quotas(1, SECOND) {
        let service = QueuedService::new(quota, |gate| {
            RateLimitLayer::new(gate, by_key()).wait(Duration::from_millis(3_500), 100)
        });
        let mut sent = Vec::new();
        for name in ["1", "2", "3", "4", "5", "6", "7"] {
            sent.push(service.send(name).await);
        }
        let at_once = sent.iter().map(JoinHandle::is_finished).collect::<Vec<_>>();
        // A sliding counter's bound permits one more window.
        let waiting = if name == "counter" { 4 } else { 3 };
        let expected: Vec<_> = (0..7).map(|at| at == 0 || at > waiting).collect();
        assert_eq!(at_once, expected, "{name}");
        for _ in 0..35 {
            service.advance(Duration::from_millis(100)).await;
        }
        let mut admitted = 0;
        for (at, sent) in sent.into_iter().enumerate() {
            assert!(sent.is_finished(), "{name}");
            let is_admitted = sent.await.unwrap().status == StatusCode::OK;
            assert!(is_admitted || at >= 3, "{name}: {at}");
            admitted += usize::from(is_admitted);
        }
        assert_eq!(service.arrivals().len(), admitted, "{name}");
    }
}

#[tokio::test]
async fn full_queue_denies_and_a_freed_permit_is_reused() {
    let service =
        QueuedService::new(each_second(1), |gate| RateLimitLayer::new(gate, by_key()).wait(100 * SECOND, 2));
    service.send("1").await.await.unwrap();
    let (second, third) = (service.send("2").await, service.send("3").await);
    let fourth = service.send("4").await;
    assert!(fourth.is_finished(), "at once");
    let fourth = fourth.await.unwrap();
    assert_eq!((fourth.status, fourth.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("1")));
    let other = service.send_for("b", "5").await;
    assert_eq!(other.await.unwrap().status, StatusCode::OK, "a request that does not wait needs no permit");

    // The first waiting request is dropped: the next one becomes the first, and a permit is free.
    second.abort();
    settle().await;
    let sixth = service.send("6").await;
    assert!(!sixth.is_finished());
    service.advance(SECOND).await;
    service.advance(SECOND).await;
    assert!(third.is_finished() && sixth.is_finished());
    assert_eq!(service.arrivals(), arrivals(&[("1", 0), ("5", 0), ("3", 1_000), ("6", 2_000)]));
}

#[tokio::test]
async fn denial_by_a_full_queue_reports_when_its_cost_is_available() {
    let service = QueuedService::new(each_second(4), |gate| {
        RateLimitLayer::new(gate, by_key()).cost(|_| 3).wait(100 * SECOND, 1)
    });
    service.send("1").await.await.unwrap();
    let waits = service.send("2").await;
    let denied = service.send("3").await.await.unwrap();
    assert_eq!((denied.header("retry-after"), denied.number("x-ratelimit-remaining")), (Some("2"), 1));
    assert_eq!(denied.limits()[0].reset, 2);
    service.advance(2 * SECOND).await;
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn cheaper_request_does_not_overtake() {
    let cost = |parts: &http::request::Parts| if parts.uri.path() == "/small" { 1 } else { 3 };
    let service = QueuedService::new(each_second(4), |gate| {
        RateLimitLayer::new(gate, by_key()).cost(cost).wait(100 * SECOND, 9)
    });
    service.send("1").await.await.unwrap();
    let (large, small) = (service.send("large").await, service.send("small").await);
    assert!(!large.is_finished() && !small.is_finished(), "although one unit is available");
    service.advance(2 * SECOND).await;
    assert!(large.is_finished() && !small.is_finished());
    service.advance(SECOND).await;
    assert!(small.is_finished());
    assert_eq!(service.arrivals(), arrivals(&[("1", 0), ("large", 2_000), ("small", 3_000)]));
}

#[tokio::test]
async fn keys_do_not_wait_for_each_other() {
    let service =
        QueuedService::new(each_second(1), |gate| RateLimitLayer::new(gate, by_key()).wait(100 * SECOND, 10));
    for (key, name) in [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("b", "5")] {
        service.send_for(key, name).await;
    }
    service.advance(SECOND).await;
    service.advance(SECOND).await;
    let mut arrivals = service.arrivals();
    arrivals.sort_by_key(|(name, at)| (*at, name.clone()));
    let names: Vec<_> = arrivals.iter().map(|(name, at)| (&**name, *at)).collect();
    assert_eq!(names, [("1", 0), ("2", 0), ("3", 1_000), ("5", 1_000), ("4", 2_000)]);
}

#[tokio::test]
async fn leaky_bucket_requests_enter_evenly_spaced() {
    let quota = Quota::leaky_bucket(4, Rate::per_second(2));
    for waiting in [false, true] {
        let service = QueuedService::new(quota, |gate| {
            let layer = RateLimitLayer::new(gate, by_key());
            if waiting { layer.wait(10 * SECOND, 10) } else { layer }
        });
        let mut sent = Vec::new();
        for name in ["1", "2", "3", "4", "5"] {
            sent.push(service.send(name).await);
        }
        for _ in 0..4 {
            service.advance(Duration::from_millis(500)).await;
        }
        let all = [("1", 0), ("2", 500), ("3", 1_000), ("4", 1_500), ("5", 2_000)];
        let expected = arrivals(if waiting { &all } else { &all[..4] });
        assert_eq!(service.arrivals(), expected, "{waiting}");
        let last = sent.pop().unwrap().await.unwrap();
        assert_eq!(last.status == StatusCode::OK, waiting, "the bucket is full, unless requests wait for it");
    }
}

#[tokio::test]
async fn leaving_a_leaky_buckets_queue_refunds_the_slot() {
    let quota = Quota::leaky_bucket(2, Rate::per_second(1));
    let service = QueuedService::new(quota, |gate| {
        RateLimitLayer::new(gate.clone(), by_key()).and(gate, Key::constant("all"))
    });
    service.send("1").await.await.unwrap();
    let waits = service.send("2").await;
    assert_eq!(service.send("3").await.await.unwrap().status, StatusCode::TOO_MANY_REQUESTS);
    waits.abort();
    settle().await;
    let takes_slot = service.send("4").await;
    service.advance(SECOND).await;
    assert_eq!(takes_slot.await.unwrap().status, StatusCode::OK);
    assert_eq!(service.arrivals(), arrivals(&[("1", 0), ("4", 1_000)]));
}

#[tokio::test]
async fn leaky_bucket_delay_is_bounded_by_max_wait() {
    let quota = Quota::leaky_bucket(100, Rate::per_second(1));
    let service = QueuedService::new(quota, |gate| RateLimitLayer::new(gate, by_key()).wait(2 * SECOND, 100));
    let mut statuses = Vec::new();
    let mut sent = Vec::new();
    for name in ["1", "2", "3", "4", "5"] {
        sent.push(service.send(name).await);
    }
    service.advance(2 * SECOND).await;
    for sent in sent {
        statuses.push(sent.await.unwrap().status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

#[tokio::test]
async fn several_gates_are_awaited_together() {
    let clock = ManualClock::new();
    let limiter = Limiter::in_memory_with(clock.clone());
    let (user, all) = (limiter.gate("user", each_second(1)), limiter.gate("all", each_second(2)));
    let layer = RateLimitLayer::new(user, by_key()).and(all.clone(), Key::constant("all"));
    let tested = Tested::new(layer.wait(10 * SECOND, 10));
    assert_eq!(tested.get("a").await.status, StatusCode::OK);
    let waits = tokio::spawn({
        let tested = tested.clone();
        async move { tested.get("a").await }
    });
    settle().await;
    assert_eq!(all.peek("all").await.unwrap().remaining(), 1, "a waiting request is not charged");
    clock.advance(SECOND);
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}

/// `poll_ready` takes a slot of the concurrency limit, so a waiting request must not poll the service yet.
#[tokio::test]
async fn waiting_request_holds_no_concurrency_slot() {
    let quotas = [each_second(1), Quota::leaky_bucket(9, Rate::per_second(1))];
    for (quota, waits) in quotas.into_iter().zip([true, false]) {
        let clock = ManualClock::new();
        let gate = Limiter::in_memory_with(clock.clone()).gate("api", quota);
        let layer = RateLimitLayer::new(gate, by_key());
        let layer = if waits { layer.wait(10 * SECOND, 10) } else { layer };
        let one_at_a_time = ConcurrencyLimitLayer::new(1);
        let hello =
            service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
        let service = layer.layer(one_at_a_time.layer(hello));
        let send = |key: &str| tokio::spawn(service.clone().oneshot(request(key)));
        send("a").await.unwrap().unwrap();
        let waiting = send("a");
        settle().await;
        let other = send("b");
        settle().await;
        assert!(!waiting.is_finished());
        assert!(other.is_finished(), "{quota}");
        clock.advance(SECOND);
        assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}

/// Uses the real clock and Redis. The two layers stand for two instances.
#[tokio::test]
async fn over_redis_waiting_requests_enter_at_the_rate() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    let gate = limiter.gate("api", Quota::token_bucket(5, Rate::per_second(50)));
    let layer = || RateLimitLayer::new(gate.clone(), by_key()).wait(Duration::from_secs(30), 1_000);
    let instances = [Tested::new(layer()), Tested::new(layer())];
    let start = std::time::Instant::now();
    let replies = (0..60).map(|at| instances[at % 2].get("a"));
    let replies = futures_util::future::join_all(replies).await;
    assert!(replies.iter().all(|reply| reply.status == StatusCode::OK));
    assert!(start.elapsed() >= Duration::from_millis(55 * 20 - 1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_request_that_is_denied_after_waiting_fills_the_deny_cache() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).deny_cache(HOUR).build().unwrap();
    let gate = limiter.gate("api", Quota::fixed_window(1, HOUR));
    let layer = RateLimitLayer::new(gate.clone(), Key::constant("key")).wait(Duration::from_millis(1), 10);
    let inner = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let service = layer.layer(inner);
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let response = service.clone().oneshot(Request::new(String::new())).await.unwrap();
        assert_eq!(response.status(), status);
    }
    assert_eq!(gate.check("key").await.unwrap().source(), Source::DenyCache);
}

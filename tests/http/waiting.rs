//! Requests that wait for their turn.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tidegate::http::{Key, RateLimitLayer};
use tidegate::{Gate, Limiter, ManualClock, Quota, Rate};
use tokio::task::JoinHandle;

use super::fixture::{Reply, Tested, by_key};
use crate::support::fixture::limiter;

const SECOND: Duration = Duration::from_secs(1);

/// A service by a clock that a test moves, which notes who came in, and when.
struct Waiting {
    clock: ManualClock,
    tested: Tested,
    came: Arc<Mutex<Vec<(String, u64)>>>,
}

impl Waiting {
    fn new(quota: Quota, layer: impl FnOnce(Gate) -> RateLimitLayer) -> Self {
        let clock = ManualClock::new();
        let (start, came) = (clock.now(), Arc::new(Mutex::new(Vec::new())));
        let gate = Limiter::in_memory_with(clock.clone()).gate("api", quota);
        let (noted, shown) = (came.clone(), clock.clone());
        let tested = Tested::with(layer(gate), move |request: Request<String>| {
            let name = request.uri().path()[1..].to_owned();
            noted.lock().unwrap().push((name, (shown.now() - start).as_millis() as u64));
            std::future::ready(Response::new(String::new()))
        });
        Self { clock, tested, came }
    }

    /// Sends a request for key `a`, and lets it come as far as it can.
    async fn send(&self, name: &str) -> JoinHandle<Reply> {
        self.send_for("a", name).await
    }

    async fn send_for(&self, key: &str, name: &str) -> JoinHandle<Reply> {
        let request = Request::get(format!("/{name}")).header("x-api-key", key).body(String::new()).unwrap();
        let tested = self.tested.clone();
        let sent = tokio::spawn(async move { tested.send(request).await });
        settle().await;
        sent
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        settle().await;
    }

    fn came(&self) -> Vec<(String, u64)> {
        self.came.lock().unwrap().clone()
    }
}

/// On one thread, and with a store that answers at once: until all wait for the clock.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn each_second(burst: u64) -> Quota {
    Quota::token_bucket(burst, Rate::per_second(1))
}

fn came(names: &[(&str, u64)]) -> Vec<(String, u64)> {
    names.iter().map(|&(name, at)| (name.to_owned(), at)).collect()
}

#[tokio::test]
async fn requests_go_in_one_by_one_in_the_order_of_their_coming() {
    let it = Waiting::new(each_second(2), |gate| RateLimitLayer::new(gate, by_key()).wait(10 * SECOND, 10));
    let mut sent = Vec::new();
    for name in ["1", "2", "3", "4", "5"] {
        sent.push(it.send(name).await);
    }
    it.advance(SECOND).await;
    sent.push(it.send("6").await);
    for _ in 0..3 {
        it.advance(SECOND).await;
    }
    let came = came(&[("1", 0), ("2", 0), ("3", 1_000), ("4", 2_000), ("5", 3_000), ("6", 4_000)]);
    assert_eq!(it.came(), came);
    for sent in sent {
        assert_eq!(sent.await.unwrap().status, StatusCode::OK);
    }
}

#[tokio::test]
async fn who_would_wait_too_long_is_denied_at_once() {
    let it = Waiting::new(each_second(1), |gate| {
        RateLimitLayer::new(gate, by_key()).wait(Duration::from_millis(999), 10)
    });
    it.send("1").await.await.unwrap();
    let denied = it.send("2").await;
    assert!(denied.is_finished());
    assert_eq!(denied.await.unwrap().header("retry-after"), Some("1"));
    it.clock.advance(Duration::from_millis(1));
    let waits = it.send("3").await;
    assert!(!waits.is_finished());
    it.advance(Duration::from_millis(999)).await;
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn who_stands_in_line_too_long_is_denied_then() {
    let it = Waiting::new(each_second(1), |gate| {
        RateLimitLayer::new(gate, by_key()).wait(Duration::from_millis(2_500), 10)
    });
    let mut sent = Vec::new();
    for name in ["1", "2", "3", "4", "5"] {
        sent.push(it.send(name).await);
    }
    for _ in 0..5 {
        it.advance(Duration::from_millis(500)).await;
    }
    let mut statuses = Vec::new();
    for sent in sent {
        assert!(sent.is_finished());
        statuses.push(sent.await.unwrap().status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(it.came(), came(&[("1", 0), ("2", 1_000), ("3", 2_000)]));
}

#[tokio::test]
async fn a_room_that_is_full_sends_away_and_one_that_was_left_takes_in() {
    let it = Waiting::new(each_second(1), |gate| RateLimitLayer::new(gate, by_key()).wait(100 * SECOND, 2));
    it.send("1").await.await.unwrap();
    let (second, third) = (it.send("2").await, it.send("3").await);
    let fourth = it.send("4").await;
    assert!(fourth.is_finished(), "at once");
    let fourth = fourth.await.unwrap();
    assert_eq!((fourth.status, fourth.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("1")));
    let other = it.send_for("b", "5").await;
    assert_eq!(other.await.unwrap().status, StatusCode::OK, "who need not wait needs no room");

    // The first in line goes away: the next is first, and a place is free.
    second.abort();
    settle().await;
    let sixth = it.send("6").await;
    assert!(!sixth.is_finished());
    it.advance(SECOND).await;
    it.advance(SECOND).await;
    assert!(third.is_finished() && sixth.is_finished());
    assert_eq!(it.came(), came(&[("1", 0), ("5", 0), ("3", 1_000), ("6", 2_000)]));
}

#[tokio::test]
async fn keys_do_not_wait_for_each_other() {
    let it = Waiting::new(each_second(1), |gate| RateLimitLayer::new(gate, by_key()).wait(100 * SECOND, 10));
    for (key, name) in [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("b", "5")] {
        it.send_for(key, name).await;
    }
    it.advance(SECOND).await;
    it.advance(SECOND).await;
    let mut came = it.came();
    came.sort_by_key(|(name, at)| (*at, name.clone()));
    let names: Vec<_> = came.iter().map(|(name, at)| (&**name, *at)).collect();
    assert_eq!(names, [("1", 0), ("2", 0), ("3", 1_000), ("5", 1_000), ("4", 2_000)]);
}

#[tokio::test]
async fn the_requests_of_a_leaky_bucket_go_in_evenly_spaced() {
    let quota = Quota::leaky_bucket(4, Rate::per_second(2));
    for waiting in [false, true] {
        let it = Waiting::new(quota, |gate| {
            let layer = RateLimitLayer::new(gate, by_key());
            if waiting { layer.wait(10 * SECOND, 10) } else { layer }
        });
        let mut sent = Vec::new();
        for name in ["1", "2", "3", "4", "5"] {
            sent.push(it.send(name).await);
        }
        for _ in 0..4 {
            it.advance(Duration::from_millis(500)).await;
        }
        let all = [("1", 0), ("2", 500), ("3", 1_000), ("4", 1_500), ("5", 2_000)];
        let came = came(if waiting { &all } else { &all[..4] });
        assert_eq!(it.came(), came, "{waiting}");
        let last = sent.pop().unwrap().await.unwrap();
        assert_eq!(last.status == StatusCode::OK, waiting, "the queue is full, unless one waits before it");
    }
}

#[tokio::test]
async fn who_leaves_a_leaky_buckets_queue_gives_his_place_back() {
    let quota = Quota::leaky_bucket(2, Rate::per_second(1));
    let it = Waiting::new(quota, |gate| {
        RateLimitLayer::new(gate.clone(), by_key()).and(gate, Key::constant("all"))
    });
    it.send("1").await.await.unwrap();
    let waits = it.send("2").await;
    assert_eq!(it.send("3").await.await.unwrap().status, StatusCode::TOO_MANY_REQUESTS);
    waits.abort();
    settle().await;
    let takes_it = it.send("4").await;
    it.advance(SECOND).await;
    assert_eq!(takes_it.await.unwrap().status, StatusCode::OK);
    assert_eq!(it.came(), came(&[("1", 0), ("4", 1_000)]));
}

#[tokio::test]
async fn no_longer_than_max_wait_is_waited_for_a_turn_in_a_queue() {
    let quota = Quota::leaky_bucket(100, Rate::per_second(1));
    let it = Waiting::new(quota, |gate| RateLimitLayer::new(gate, by_key()).wait(2 * SECOND, 100));
    let mut statuses = Vec::new();
    let mut sent = Vec::new();
    for name in ["1", "2", "3", "4", "5"] {
        sent.push(it.send(name).await);
    }
    it.advance(2 * SECOND).await;
    for sent in sent {
        statuses.push(sent.await.unwrap().status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

#[tokio::test]
async fn several_gates_are_waited_for_together() {
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
    assert_eq!(all.peek("all").await.unwrap().remaining(), 1, "who waits has taken nothing");
    clock.advance(SECOND);
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}

/// By the real clock, over Redis, from two processes' worth of layers.
#[tokio::test]
async fn over_redis_all_who_wait_go_in_and_no_faster_than_the_rate() {
    let server = harness::shared();
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

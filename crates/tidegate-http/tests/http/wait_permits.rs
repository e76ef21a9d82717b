//! The permits of the wait queue: which requests hold them, and how keys share them.

#![allow(clippy::print_stdout, reason = "prints the figures of decision 33")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, StatusCode};
use tidegate::{Event, Limiter, ManualClock, Observer, Quota, Rate, Switch};
use tidegate_http::{Key, RateLimitLayer};
use tidegate_testkit::{Fault, Proxy, Server};
use tokio::task::JoinHandle;

use super::fixture::{Reply, Tested, by_key, request, settle};
use super::waiting::{QueuedService, arrivals, each_second};
use crate::support::fixture::{HOUR, Paused, builder, limiter, quotas, soon};

const SECOND: Duration = Duration::from_secs(1);
const ATTACKERS: usize = 1_100;
const VICTIM: usize = 8;

/// Counts decisions and calls.
#[derive(Default)]
struct Counts {
    admitted: AtomicUsize,
    denied: AtomicUsize,
    calls: AtomicUsize,
}

impl Observer for Counts {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Decided(decision) => {
                let count = if decision.is_allowed() { &self.admitted } else { &self.denied };
                count.fetch_add(1, Ordering::SeqCst);
            }
            Event::Called { .. } => {
                self.calls.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
    }
}

/// Counts the admitted ones of 8 simultaneous requests, while `attackers` connections repeat requests for one
/// other key.
async fn admitted_of_victim(quota: Quota, permits: usize, max_wait: Duration, attackers: usize) -> usize {
    let clock = ManualClock::new();
    let gate = Limiter::in_memory_with(clock.clone()).gate("api", quota);
    let tested = Tested::new(RateLimitLayer::new(gate, by_key()).wait(max_wait, permits));
    let send = |key: &'static str| {
        let tested = tested.clone();
        tokio::spawn(async move { tested.get(key).await })
    };
    let mut attack: Vec<JoinHandle<Reply>> = (0..attackers).map(|_| send("attacker")).collect();
    settle().await;
    let mut victim = Vec::new();
    for round in 0..24 {
        if round == 1 {
            victim.extend((0..VICTIM).map(|_| send("victim")));
        }
        for attacker in attack.iter_mut().filter(|attacker| round % 4 < 2 && attacker.is_finished()) {
            *attacker = send("attacker");
        }
        settle().await;
        clock.advance(Duration::from_millis(250));
        settle().await;
    }
    let mut admitted = 0;
    for request in victim.into_iter().filter(JoinHandle::is_finished) {
        admitted += usize::from(request.await.unwrap().status == StatusCode::OK);
    }
    attack.iter().for_each(JoinHandle::abort);
    admitted
}

#[tokio::test]
async fn one_key_cannot_keep_another_from_waiting() {
    for (name, quota) in quotas(2, SECOND) {
        for permits in [100, 1_000] {
            // With the longer time, the attacker's queue fills all permits.
            for max_wait in [5 * SECOND, 1_000 * SECOND] {
                let alone = admitted_of_victim(quota, permits, max_wait, 0).await;
                let attacked = admitted_of_victim(quota, permits, max_wait, ATTACKERS).await;
                println!(
                    "{name}, {permits} permits, {max_wait:?}: {attacked} of {VICTIM}, {alone} without attack"
                );
                assert!(alone >= 7 && attacked * 8 >= alone * 7, "{name}, {permits} permits, {max_wait:?}");
            }
        }
    }
}

#[tokio::test]
async fn over_redis_one_key_cannot_keep_another_from_waiting() {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("api", Quota::token_bucket(2, Rate::per_second(20)));
    let tested = Tested::new(RateLimitLayer::new(gate, by_key()).wait(60 * SECOND, 100));
    let attack: Vec<_> = (0..300)
        .map(|_| {
            let tested = tested.clone();
            tokio::spawn(async move {
                loop {
                    tested.get("attacker").await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        })
        .collect();
    soon("all permits are taken", async || {
        let one = tokio::time::timeout(Duration::from_millis(20), tested.get("attacker")).await;
        one.is_ok_and(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS)
    })
    .await;
    let victim = futures_util::future::join_all((0..VICTIM).map(|_| tested.get("victim"))).await;
    let admitted = victim.iter().filter(|reply| reply.status == StatusCode::OK).count();
    println!("over Redis: {admitted} of {VICTIM}");
    assert!(admitted * 8 >= VICTIM * 7, "{admitted} of {VICTIM}");
    attack.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn newest_request_of_the_longest_queue_yields_to_another_key() {
    let service =
        QueuedService::new(each_second(1), |gate| RateLimitLayer::new(gate, by_key()).wait(100 * SECOND, 3));
    service.send_for("a", "a1").await;
    let mut waits = Vec::new();
    for name in ["a2", "a3", "a4"] {
        waits.push(service.send_for("a", name).await);
    }
    service.send_for("b", "b1").await;
    let other = service.send_for("b", "b2").await;
    assert!(!other.is_finished());
    assert_eq!(waits.iter().map(JoinHandle::is_finished).collect::<Vec<_>>(), [false, false, true]);
    let displaced = waits.pop().unwrap().await.unwrap();
    assert_eq!(
        (displaced.status, displaced.header("retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, Some("1"))
    );
    let last = service.send_for("b", "b3").await;
    assert_eq!(last.await.unwrap().status, StatusCode::TOO_MANY_REQUESTS, "the queues are equally long");
    for _ in 0..2 {
        service.advance(SECOND).await;
    }
    let mut entered = service.arrivals();
    entered.sort_by_key(|(name, at)| (*at, name.clone()));
    assert_eq!(entered, arrivals(&[("a1", 0), ("b1", 0), ("a2", 1_000), ("b2", 1_000), ("a3", 2_000)]));
}

#[tokio::test]
async fn full_queue_without_a_longer_queue_denies_a_newcomer() {
    let service =
        QueuedService::new(each_second(1), |gate| RateLimitLayer::new(gate, by_key()).wait(100 * SECOND, 3));
    let mut waits = Vec::new();
    for key in ["a", "b", "c"] {
        service.send_for(key, "admitted").await;
        waits.push(service.send_for(key, "waits").await);
    }
    service.send_for("d", "admitted").await;
    let newcomer = service.send_for("d", "newcomer").await;
    assert_eq!(newcomer.await.unwrap().status, StatusCode::TOO_MANY_REQUESTS);
    assert!(waits.iter().all(|waits| !waits.is_finished()));
}

#[tokio::test]
async fn delays_of_admitted_requests_take_no_wait_permits() {
    let quota = Quota::leaky_bucket(3, Rate::per_second(1));
    let service = QueuedService::new(quota, |gate| RateLimitLayer::new(gate, by_key()).wait(100 * SECOND, 2));
    let mut sent = Vec::new();
    for name in ["a1", "a2", "a3", "a4", "a5", "a6"] {
        sent.push(service.send_for("a", name).await);
    }
    // a2 and a3 are admitted with a delay, and a4 and a5 wait.
    let finished: Vec<_> = sent.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(finished, [true, false, false, false, false, true]);
    assert_eq!(sent.pop().unwrap().await.unwrap().status, StatusCode::TOO_MANY_REQUESTS);
    // The delay of b2 displaces that of a3, whose slot in the bucket is refunded.
    service.send_for("b", "b1").await;
    let other = service.send_for("b", "b2").await;
    assert!(!other.is_finished() && sent[2].is_finished());
    assert_eq!(service.limiter.gate("api", quota).peek("a").await.unwrap().remaining(), 1);
    for _ in 0..6 {
        service.advance(SECOND).await;
    }
    let mut statuses = Vec::new();
    for sent in sent {
        statuses.push(sent.await.unwrap().status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 200, 200]);
    assert_eq!(other.await.unwrap().status, StatusCode::OK);
    let entered: Vec<_> = service.arrivals().into_iter().filter(|(name, _)| name.starts_with('a')).collect();
    assert_eq!(entered, arrivals(&[("a1", 0), ("a2", 1_000), ("a4", 3_000), ("a5", 4_000)]));
}

#[tokio::test]
async fn requests_take_no_slots_of_a_leaky_bucket_that_they_cannot_wait_for() {
    let server = Server::process(&[]).unwrap();
    let counts = Arc::new(Counts::default());
    let limiter = builder(server.url()).observer(counts.clone()).build().unwrap();
    let gate = limiter.gate("api", Quota::leaky_bucket(1_000, Rate::new(1, HOUR)));
    let tested = Tested::new(RateLimitLayer::new(gate.clone(), by_key()).wait(2_000 * HOUR, 2));
    let _ = gate.peek("a").await.unwrap();
    let paused = Paused::new(&server);
    let send = |_| {
        let tested = tested.clone();
        tokio::spawn(async move { tested.get("a").await })
    };
    let sent: Vec<_> = (0..100).map(send).collect();
    settle().await;
    drop(paused);
    // One needs no delay, and two wait for theirs. Two others wait in the queue.
    soon("all others are rejected", async || sent.iter().filter(|it| it.is_finished()).count() >= 96).await;
    let admitted = counts.admitted.load(Ordering::SeqCst);
    assert!((2..=3).contains(&admitted), "{admitted} took a slot");
    assert_eq!(gate.peek("a").await.unwrap().remaining(), 1_000 - admitted as u64);
    sent.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn requests_of_a_shared_key_are_admitted_several_at_a_time() {
    const REQUESTS: usize = 300;
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let counts = Arc::new(Counts::default());
    let limiter = builder(&proxy.url()).observer(counts.clone()).build().unwrap();
    let gate = limiter.gate("all", Quota::token_bucket(1_000, Rate::new(1, 3 * SECOND)));
    let tested = Tested::new(RateLimitLayer::new(gate.clone(), Key::constant("all")).wait(HOUR, 1_000));
    let _ = gate.check_cost("all", 1_000).await.unwrap();
    proxy.set(Fault::Slow(Duration::from_millis(10)));
    let mut sent = vec![tested.begin(request("a")).await];
    soon("the first one waits", async || counts.denied.load(Ordering::SeqCst) == 1).await;
    settle().await;
    sent.extend((1..REQUESTS).map(|_| {
        let tested = tested.clone();
        tokio::spawn(async move { tested.get("a").await })
    }));
    settle().await;
    let before = counts.calls.load(Ordering::SeqCst);
    gate.reset("all").await.unwrap();
    for sent in sent {
        assert_eq!(sent.await.unwrap().status, StatusCode::OK);
    }
    let calls = counts.calls.load(Ordering::SeqCst) - before;
    println!("{REQUESTS} requests of a shared key: {calls} calls");
    assert!(calls < REQUESTS / 3, "{calls} calls");
}

#[tokio::test]
async fn rejection_by_the_wait_queue_does_not_call_redis() {
    let server = Server::process(&[]).unwrap();
    let gate = limiter(&server).gate("api", Quota::fixed_window(1, HOUR));
    let tested = Tested::new(RateLimitLayer::new(gate, by_key()).wait(2 * HOUR, 1));
    assert_eq!(tested.get("a").await.status, StatusCode::OK);
    let two = [0, 1].map(|_| {
        let tested = tested.clone();
        tokio::spawn(async move { tested.get("a").await })
    });
    // The permit is for one of them.
    soon("one waits, and one is rejected", async || two.iter().any(JoinHandle::is_finished)).await;
    // From now on, a request that calls Redis fails with 503.
    drop(server);
    assert_eq!(tested.get("b").await.status, StatusCode::SERVICE_UNAVAILABLE);
    for _ in 0..50 {
        let rejected = tested.get("a").await;
        assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejected.number("x-ratelimit-remaining"), 0);
        assert!((3_000..=3_600).contains(&rejected.number("retry-after")), "{rejected:?}");
    }
    two.iter().for_each(JoinHandle::abort);
}

fn user_and(key: &str, user: Quota, other: Quota, max_waiting: usize) -> (ManualClock, Tested) {
    let clock = ManualClock::new();
    let limiter = Limiter::in_memory_with(clock.clone());
    let layer = RateLimitLayer::new(limiter.gate("user", user), by_key())
        .and(limiter.gate("other", other), Key::header(key));
    (clock, Tested::new(layer.wait(100 * SECOND, max_waiting)))
}

#[tokio::test]
async fn copied_rejection_does_not_take_its_retry_time_from_a_gate_in_shadow_mode() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let shadow = limiter.gate("shadow", Quota::fixed_window(1, HOUR)).shadow(true);
    let layer = RateLimitLayer::new(limiter.gate("user", each_second(1)), by_key()).and(shadow, by_key());
    let tested = Tested::new(layer.wait(100 * SECOND, 1));
    assert_eq!(tested.get("a").await.status, StatusCode::OK);
    let waits = tested.begin(request("a")).await;
    let rejected = tested.get("a").await;
    assert_eq!((rejected.status, rejected.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("1")));
    assert!(!waits.is_finished());
}

fn request_with(user: &str, name: &'static str, value: &str) -> Request<String> {
    let mut request = request(user);
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

#[tokio::test]
async fn varying_another_key_does_not_take_the_share_of_others() {
    let (_, tested) = user_and("x-page", each_second(1), each_second(100), 3);
    tested.begin(request_with("a", "x-page", "1")).await;
    let mut waits = Vec::new();
    for page in ["2", "3", "4"] {
        waits.push(tested.begin(request_with("a", "x-page", page)).await);
    }
    assert!(waits.iter().all(|waits| !waits.is_finished()));
    tested.begin(request_with("b", "x-page", "1")).await;
    let other = tested.begin(request_with("b", "x-page", "1")).await;
    assert!(!other.is_finished() && waits[2].is_finished());
}

#[tokio::test]
async fn request_moves_to_the_queue_of_the_key_that_denies_it() {
    let slow = Quota::token_bucket(2, Rate::new(1, 10 * SECOND));
    let (clock, tested) = user_and("x-all", each_second(1), slow, 10);
    let send = async |user: &str| tested.begin(request_with(user, "x-all", "all")).await;
    send("a").await;
    // These wait for their user's limit, until `b` takes the last unit of all.
    let (first, second) = (send("a").await, send("a").await);
    assert!(send("b").await.is_finished());
    clock.advance(SECOND);
    settle().await;
    let third = send("c").await;
    let finished = |sent: [&JoinHandle<Reply>; 3]| sent.map(JoinHandle::is_finished);
    let enter = [(8, [true, false, false]), (9, [true, true, false]), (9, [true, true, true])];
    for (seconds, expected) in enter {
        clock.advance(seconds * SECOND);
        settle().await;
        assert_ne!(finished([&first, &second, &third]), expected, "too early");
        clock.advance(SECOND);
        settle().await;
        assert_eq!(finished([&first, &second, &third]), expected);
    }
}

#[tokio::test]
async fn requests_enter_when_their_gate_is_switched_to_shadow_or_open() {
    for switch in [Switch::Shadow, Switch::Open] {
        let service = QueuedService::new(Quota::fixed_window(1, HOUR), |gate| {
            RateLimitLayer::new(gate, by_key()).wait(10 * HOUR, 10)
        });
        let mut sent = Vec::new();
        for name in ["1", "2", "3", "4"] {
            sent.push(service.send(name).await);
        }
        service.advance(5 * SECOND).await;
        assert_eq!(sent.iter().filter(|sent| sent.is_finished()).count(), 1);
        service.limiter.control().switch("api", switch, None).await.unwrap();
        for _ in 0..2 {
            service.advance(SECOND).await;
        }
        for sent in sent {
            assert!(sent.is_finished(), "{switch}");
            assert_eq!(sent.await.unwrap().status, StatusCode::OK);
        }
    }
}

#[tokio::test]
async fn closed_gate_rejects_newcomers_at_once_and_waiting_requests_within_a_second() {
    let service = QueuedService::new(Quota::fixed_window(1, HOUR), |gate| {
        RateLimitLayer::new(gate, by_key()).wait(10 * HOUR, 10)
    });
    assert_eq!(service.send("1").await.await.unwrap().status, StatusCode::OK);
    let mut waits = Vec::new();
    for name in ["2", "3", "4"] {
        waits.push(service.send(name).await);
    }
    service.advance(5 * SECOND).await;
    assert!(waits.iter().all(|waits| !waits.is_finished()));
    service.limiter.control().switch("api", Switch::Closed, None).await.unwrap();
    let newcomer = service.send("5").await;
    assert!(newcomer.is_finished());
    service.advance(SECOND).await;
    for sent in waits.into_iter().chain([newcomer]) {
        assert!(sent.is_finished());
        assert_eq!(sent.await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
    }
}

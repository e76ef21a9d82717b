//! Permits while Redis is unavailable, loses its state, or does not hear of a process for too long.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Event, Limiter, Observer, OnFailure, OnLapse, Permit, Quota, Source, Switch};
use tidegate_testkit::{Fault, Proxy, Server};

use super::{TTL, acquire_until_denied, remaining};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{HOUR, PATIENCE, calls, soon};

const DEADLINE: Duration = Duration::from_millis(300);

/// Returns a limiter in a namespace that all limiters of a test share.
fn connect(url: &str) -> Limiter {
    settings(url).build().unwrap()
}

fn settings(url: &str) -> tidegate::Builder {
    let builder = Limiter::builder().url(url).namespace("failures").deadline(DEADLINE);
    builder.permit_ttl(TTL).stderr_warnings(false).on_failure(OnFailure::Error)
}

#[derive(Default)]
struct Lapses {
    lapsed: AtomicU64,
    restored: AtomicU64,
}

impl Observer for Lapses {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::PermitsLapsed { units, .. } => {
                self.lapsed.fetch_add(units, Ordering::SeqCst);
            }
            Event::PermitsRestored { units, .. } => {
                self.restored.fetch_add(units, Ordering::SeqCst);
            }
            _ => {}
        }
    }
}

/// Interrupts the network until the lease has lapsed.
async fn lapse(proxy: &Proxy, permit: &Permit) {
    proxy.set(Fault::BlackHole);
    tokio::time::timeout(PATIENCE, permit.lapsed()).await.expect("the permit lapses");
    assert!(!permit.is_held());
    // Until the lease has ended for Redis, too.
    tokio::time::sleep(TTL).await;
}

#[tokio::test]
async fn lapsed_permits_are_restored() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let lapses = Arc::new(Lapses::default());
    let gate =
        settings(&proxy.url()).observer(lapses.clone()).build().unwrap().gate("gate", Quota::in_flight(3));
    let other = connect(server.url()).gate("gate", Quota::in_flight(3));
    let permit = gate.acquire("x").cost(2).await.unwrap().permit().unwrap();
    assert_eq!(remaining(&other, "x").await, 1);
    lapse(&proxy, &permit).await;
    assert_eq!(remaining(&other, "x").await, 3, "a lapsed process holds nothing");
    proxy.set(Fault::None);
    soon("the permit is restored", async || remaining(&other, "x").await == 1).await;
    soon("the process knows", async || permit.is_held()).await;
    assert_eq!(lapses.lapsed.load(Ordering::SeqCst), 2);
    assert_eq!(lapses.restored.load(Ordering::SeqCst), 2);
    permit.release().await.unwrap();
    assert_eq!(remaining(&other, "x").await, 3);
}

#[tokio::test]
async fn lost_permits_stay_lost_and_their_release_frees_no_unit_of_others() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let gate = connect(&proxy.url()).gate("gate", Quota::in_flight(2)).on_lapse(OnLapse::Lost);
    let other = connect(server.url()).gate("gate", Quota::in_flight(2));
    let permits = acquire_until_denied(&gate, "x").await;
    lapse(&proxy, &permits[0]).await;
    let others = acquire_until_denied(&other, "x").await;
    assert_eq!(others.len(), 2);
    proxy.set(Fault::None);
    soon("Redis answers again", async || gate.acquire("x").await.is_ok()).await;
    assert!(permits.iter().all(|permit| !permit.is_held()));
    for permit in permits {
        permit.release().await.unwrap();
    }
    assert_eq!(remaining(&other, "x").await, 0);
    drop(others);
    soon("a unit is acquired", async || gate.try_acquire("x").await.unwrap().permit().is_some()).await;
}

#[tokio::test]
async fn state_that_was_flushed_is_back_after_a_heartbeat() {
    let server = Server::process(&[]).unwrap();
    let (one, other) = (connect(server.url()), connect(server.url()));
    let (gate, seen) = (one.gate("gate", Quota::in_flight(5)), other.gate("gate", Quota::in_flight(5)));
    let mut permits = Vec::new();
    for key in 0..100 {
        permits.push(gate.acquire(key.to_string()).cost(3).await.unwrap().permit().unwrap());
    }
    server.flush().unwrap();
    soon("all units are counted again", async || {
        for key in 0..100 {
            if remaining(&seen, &key.to_string()).await != 2 {
                return false;
            }
        }
        true
    })
    .await;
    assert!(permits.iter().all(Permit::is_held));
}

#[tokio::test]
async fn keys_are_restored_in_few_calls() {
    const KEYS: usize = 640;
    let server = Server::process(&[]).unwrap();
    let builder =
        settings(server.url()).deadline(PATIENCE).follow_overrides(false).instances(1).publish_figures(false);
    let gate = builder.build().unwrap().gate("gate", Quota::in_flight(1));
    let acquires = (0..KEYS).map(|key| gate.try_acquire(key.to_string()));
    let permits = futures_util::future::join_all(acquires).await;
    assert!(permits.iter().all(|acquired| acquired.as_ref().unwrap().is_allowed()));
    let before = calls(&server, "evalsha");
    server.flush().unwrap();
    let all = format!("(integer) {}", KEYS + 1);
    soon("all keys and the lease are back", async || server.cli(&["DBSIZE"]).unwrap() == all).await;
    let sent = calls(&server, "evalsha") - before;
    // 64 per call, and heartbeats. Twice as many if a busy machine loses some of the replies.
    assert!((10..=40).contains(&sent), "{sent} calls");
}

#[tokio::test]
async fn restarted_redis_counts_the_units_again() {
    let mut server = Server::process(&[]).unwrap();
    let limiter = connect(server.url());
    let gate = limiter.gate("gate", Quota::in_flight(5));
    let permit = gate.acquire("x").cost(3).await.unwrap().permit().unwrap();
    server.restart().unwrap();
    let other = connect(server.url()).gate("gate", Quota::in_flight(5));
    soon("the units are counted again", async || {
        other.peek("x").await.is_ok_and(|peek| peek.remaining() == 2)
    })
    .await;
    permit.release().await.unwrap();
}

#[tokio::test]
async fn state_lost_with_the_connection_is_reported_under_the_same_lease() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let gate = connect(&proxy.url()).gate("gate", Quota::in_flight(5));
    let other = connect(server.url()).gate("gate", Quota::in_flight(5));
    let permit = gate.acquire("x").cost(3).await.unwrap().permit().unwrap();
    // As after a failover to a replica that knew the lease, and not yet the units.
    assert_eq!(server.cli(&["DEL", &gate.redis_key("x").unwrap()]).unwrap(), "(integer) 1");
    proxy.cut();
    soon("the units are counted again", async || remaining(&other, "x").await == 2).await;
    assert!(permit.is_held());
}

#[tokio::test]
async fn acquire_without_a_reply_holds_nothing_in_the_end() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let gate = connect(&proxy.url()).gate("gate", Quota::in_flight(5));
    let other = connect(server.url()).gate("gate", Quota::in_flight(5));
    let permit = gate.try_acquire("x").await.unwrap().permit().unwrap();
    proxy.set(Fault::Slow(3 * DEADLINE));
    for _ in 0..3 {
        assert!(gate.acquire("x").await.unwrap_err().is_unavailable());
    }
    proxy.set(Fault::None);
    soon("only the permit is counted", async || remaining(&other, "x").await == 4).await;
    drop(permit);
    soon("nothing is counted", async || remaining(&other, "x").await == 5).await;
}

#[tokio::test]
async fn local_share_counts_the_permits_held_and_redis_counts_all_of_them_later() {
    let mut server = Server::process(&[]).unwrap();
    let builder = settings(server.url()).on_failure(OnFailure::Local).instances(2);
    let gate = builder.build().unwrap().gate("gate", Quota::in_flight(5));
    let mut permits = vec![gate.acquire("x").cost(2).await.unwrap().permit().unwrap()];
    server.kill();
    let acquired = gate.acquire("x").await.unwrap();
    assert_eq!((acquired.decision().source(), acquired.decision().remaining()), (Source::Local, 0));
    permits.extend(acquired.permit());
    let denied = gate.acquire("x").await.unwrap();
    assert_eq!((denied.is_allowed(), denied.decision().source()), (false, Source::Local));
    assert!(permits[1].is_held(), "the failure policy admitted it");
    drop(permits.remove(0));
    let waiting = gate.acquire("x").cost(2).max_wait(PATIENCE).await.unwrap();
    assert!(waiting.is_allowed());
    permits.extend(waiting.permit());
    server.restart().unwrap();
    let other = connect(server.url()).gate("gate", Quota::in_flight(5));
    soon("all are counted", async || other.peek("x").await.is_ok_and(|peek| peek.remaining() == 2)).await;
    drop(permits);
    soon("all are released", async || remaining(&other, "x").await == 5).await;
}

#[tokio::test]
async fn open_admits_closed_denies_and_error_fails_while_redis_is_unavailable() {
    let mut server = Server::process(&[]).unwrap();
    let limiter = connect(server.url());
    server.kill();
    let gate = |name, on_failure| limiter.gate(name, Quota::in_flight(1)).on_failure(on_failure);
    let open = gate("open", OnFailure::Open);
    let permits: Vec<Permit> = [
        open.acquire("x").await.unwrap().permit().unwrap(),
        open.acquire("x").await.unwrap().permit().unwrap(),
    ]
    .into();
    let closed = gate("closed", OnFailure::Closed).acquire("x").await.unwrap();
    assert_eq!((closed.is_allowed(), closed.decision().source()), (false, Source::Closed));
    assert!(gate("error", OnFailure::Error).acquire("x").await.unwrap_err().is_unavailable());
    server.restart().unwrap();
    let other = connect(server.url()).gate("open", Quota::in_flight(5));
    soon("the units are counted", async || other.peek("x").await.is_ok_and(|peek| peek.remaining() == 3))
        .await;
    drop(permits);
    soon("they are released", async || remaining(&other, "x").await == 5).await;
}

#[tokio::test]
async fn group_falls_back_as_its_gates_do() {
    let mut server = Server::process(&[]).unwrap();
    let limiter = settings(server.url()).on_failure(OnFailure::Local).instances(2).build().unwrap();
    let calls = limiter.gate("calls", Quota::fixed_window(10, Duration::from_secs(3_600)));
    let gate = limiter.gate("gate", Quota::in_flight(4));
    let first = limiter.acquire_all([calls.key("x"), gate.key("x")]).await.unwrap().permit().unwrap();
    server.kill();
    let second = limiter.acquire_all([calls.key("x"), gate.key("x")]).await.unwrap();
    assert_eq!(second.decision().each_alone()[1].source(), Source::Local);
    let second = second.permit().unwrap();
    let third = limiter.acquire_all([calls.key("x"), gate.key("x")]).await.unwrap();
    assert!(!third.is_allowed(), "two of four units are this process's share");
    drop(first);
    assert!(limiter.acquire_all([calls.key("x"), gate.key("x")]).await.unwrap().is_allowed());
    drop(second);
}

#[tokio::test]
async fn group_without_redis_reports_what_is_left_of_the_share() {
    let mut server = Server::process(&[]).unwrap();
    let limiter = settings(server.url()).on_failure(OnFailure::Local).instances(2).build().unwrap();
    let calls = limiter.gate("calls", Quota::fixed_window(20, Duration::from_secs(3_600)));
    let gate = limiter.gate("gate", Quota::in_flight(8));
    let acquire = async |cost| {
        let acquired = limiter.acquire_all([calls.key("x"), gate.key("x").cost(cost)]).await.unwrap();
        let decision = acquired.decision().each_alone()[1].clone();
        (decision.source(), decision.is_allowed(), decision.remaining(), acquired)
    };
    let (_, _, _, first) = acquire(1).await;
    assert!(first.is_allowed());
    server.kill();
    // This process's share is four of the eight units.
    let (source, is_allowed, remaining, second) = acquire(2).await;
    assert_eq!((source, is_allowed, remaining), (Source::Local, true, 1));
    let (source, is_allowed, remaining, _) = acquire(2).await;
    assert_eq!((source, is_allowed, remaining), (Source::Local, false, 1));
    drop((first, second));
}

#[tokio::test]
async fn shutdown_releases_all_units_and_ends_the_lease() {
    let server = Server::process(&[]).unwrap();
    let limiter = connect(server.url());
    let gate = limiter.gate("gate", Quota::in_flight(5));
    let permits: Vec<Permit> = acquire_until_denied(&gate, "x").await;
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire("x").max_wait(PATIENCE).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    limiter.shutdown().await;
    assert!(waiting.await.unwrap().unwrap_err().is_shut_down());
    assert!(permits.iter().all(|permit| !permit.is_held()));
    let other = connect(server.url()).gate("gate", Quota::in_flight(5));
    assert_eq!(remaining(&other, "x").await, 5);
    assert_eq!(server.cli(&["ZCARD", "failures:1:holders"]).unwrap(), "(integer) 0");
    for permit in permits {
        permit.release().await.unwrap();
    }
    assert!(gate.acquire("x").await.unwrap_err().is_shut_down());
}

#[tokio::test]
async fn acquire_in_memory_waits_for_no_store() {
    let deadline = Duration::from_nanos(1);
    let limiter = Limiter::builder().in_memory().deadline(deadline).build().unwrap();
    let gate = limiter.gate("gate", Quota::in_flight(1));
    for _ in 0..100 {
        gate.acquire("x").await.unwrap().permit().unwrap().release().await.unwrap();
        gate.acquire("x").deadline(deadline).await.unwrap().permit().unwrap().release().await.unwrap();
        limiter.acquire_all([gate.key("x")]).await.unwrap().permit().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn failure_policy_decides_where_no_room_is_left_for_another_caller() {
    /// The maximum number of callers of one key.
    const CALLERS: usize = 65_536;
    let limiter = Limiter::in_memory();
    let gate = limiter.gate("gate", Quota::in_flight(1));
    let _held = gate.acquire("x").await.unwrap();
    let mut waiting: Vec<_> = (0..CALLERS).map(|_| gate.acquire("x").max_wait(HOUR).into_future()).collect();
    for caller in &mut waiting {
        assert!(futures_util::poll!(caller).is_pending());
    }
    let beyond = |policy| gate.clone().on_failure(policy).acquire("x");
    let (decision, permit) = beyond(OnFailure::Open).await.unwrap().into_parts();
    assert_eq!((decision.source(), permit.unwrap().counted_units()), (Source::Open, 0));
    let (decision, permit) = beyond(OnFailure::Closed).await.unwrap().into_parts();
    assert_eq!((decision.source(), permit.is_none()), (Source::Closed, true));
    assert_eq!(beyond(OnFailure::Error).await.unwrap_err().kind(), "queue_full");
}

/// Counts decisions.
#[derive(Default)]
struct Decisions(AtomicU64);

impl Observer for Decisions {
    fn on(&self, event: &Event<'_>) {
        if let Event::Decided(_) = event {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn caller_that_waits_for_a_closed_gate_is_reported_once() {
    let decisions = Arc::new(Decisions::default());
    let limiter = Limiter::builder().in_memory().observer(decisions.clone()).build().unwrap();
    let gate = limiter.gate("gate", Quota::in_flight(1));
    limiter.control().switch("gate", Switch::Closed, None).await.unwrap();
    let denied = gate.acquire("x").max_wait(Duration::from_millis(1_500)).await.unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(decisions.0.load(Ordering::SeqCst), 1);
}

//! The calls that permits cost on a real Redis.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Limiter, Permit, Quota};
use tidegate_testkit::Server;

use super::{TTL, remaining, short_lived};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{HOUR, PATIENCE, calls, limiter, soon};

/// Returns a limiter that makes no calls but those for permits.
fn quiet(server: &Server) -> Limiter {
    short_lived(server).follow_overrides(false).instances(1).publish_figures(false).build().unwrap()
}

async fn permits(gate: &tidegate::Gate, keys: impl Iterator<Item = String>) -> Vec<Permit> {
    let acquires = keys.map(|key| gate.acquire(key).into_future());
    join_all(acquires).await.into_iter().map(|acquired| acquired.unwrap().permit().unwrap()).collect()
}

#[tokio::test]
async fn equal_acquires_made_together_are_few_calls() {
    let server = Server::process(&[]).unwrap();
    let gate = quiet(&server).gate("gate", Quota::in_flight(1_000));
    let first = gate.try_acquire("x").await.unwrap().permit();
    let before = calls(&server, "evalsha");
    let permits = permits(&gate, (0..300).map(|_| "x".to_owned())).await;
    let after = calls(&server, "evalsha");
    // Each call takes all acquires that were made during the call before it.
    assert!(after - before < 100, "{} calls", after - before);
    assert_eq!(remaining(&gate, "x").await, 699);
    drop((first, permits));
    soon("dropped permits are released", async || remaining(&gate, "x").await == 1_000).await;
}

#[tokio::test]
async fn heartbeat_renews_any_number_of_permits_of_a_process() {
    let server = Server::process(&[]).unwrap();
    let limiter = quiet(&server);
    let (one, many) =
        (limiter.gate("one", Quota::in_flight(1_000_000)), limiter.gate("many", Quota::in_flight(1)));
    let mut held = Vec::new();
    for _ in 0..10 {
        held.extend(permits(&one, (0..9_900).map(|_| "x".to_owned())).await);
    }
    held.extend(permits(&many, (0..1_000).map(|key| key.to_string())).await);
    assert_eq!(held.len(), 100_000);
    let before = calls(&server, "evalsha");
    let since = std::time::Instant::now();
    tokio::time::sleep(2 * TTL).await;
    let sent = calls(&server, "evalsha") - before;
    let intervals = since.elapsed().as_secs_f64() / (TTL.as_secs_f64() / 3.0);
    // Each interval is up to a tenth shorter.
    let most = (intervals / 0.9).ceil() as u64 + 1;
    assert!((1..=most).contains(&sent), "{sent} calls in {intervals:.1} intervals");
    assert!(held.iter().all(Permit::is_held));
    assert_eq!(server.cli(&["ZCARD", &holders_key(&server)]).unwrap(), "(integer) 1");
}

/// Returns the only key of leases on the server.
fn holders_key(server: &Server) -> String {
    let keys = server.cli(&["--raw", "KEYS", "*:holders"]).unwrap();
    keys.trim().to_owned()
}

#[tokio::test]
async fn nothing_is_left_in_redis_after_the_last_permit() {
    let server = Server::process(&[]).unwrap();
    let gate = quiet(&server).gate("gate", Quota::in_flight(10));
    for round in 0..3 {
        drop(permits(&gate, (0..30).map(|key| format!("{}", key % 7)).take(5 * (round + 1))).await);
    }
    let keys = || server.cli(&["DBSIZE"]).unwrap();
    soon("the keys are deleted", async || keys() == "(integer) 1").await;
    soon("an unused lease is ended", async || keys() == "(integer) 0").await;
    let before = calls(&server, "evalsha");
    tokio::time::sleep(TTL).await;
    assert_eq!(calls(&server, "evalsha"), before, "heartbeats have ended");
    assert!(gate.try_acquire("x").await.unwrap().permit().is_some(), "they begin again");
}

#[tokio::test]
async fn released_units_reach_other_processes() {
    let server = tidegate_testkit::shared();
    let namespace = crate::support::fixture::namespace();
    let connect = || {
        let builder = Limiter::builder().url(server.url()).namespace(&namespace);
        builder.deadline(PATIENCE).build().unwrap()
    };
    let (one, other) =
        (connect().gate("gate", Quota::in_flight(2)), connect().gate("gate", Quota::in_flight(2)));
    let first = one.acquire("x").await.unwrap().permit().unwrap();
    let second = other.acquire("x").await.unwrap().permit().unwrap();
    assert!(one.try_acquire("x").await.unwrap().permit().is_none());
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.acquire_timeout("x", HOUR).await.unwrap().permit().unwrap() }
    });
    drop(second);
    let third = waiting.await.unwrap();
    assert!(other.try_acquire("x").await.unwrap().permit().is_none());
    third.release().await.unwrap();
    first.release().await.unwrap();
    assert_eq!(remaining(&other, "x").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_of_acquires_and_cancellations_leaks_nothing() {
    let server = Server::process(&[]).unwrap();
    let limiters: Vec<Limiter> =
        (0..3).map(|_| short_lived(&server).namespace("storm").build().unwrap()).collect();
    let held = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(0));
    let tasks = (0..48_u64).map(|task| {
        let gate = limiters[task as usize % 3].gate("gate", Quota::in_flight(5));
        let held = held.clone();
        tokio::spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            for round in 0..40_u64 {
                let acquire = gate.acquire("x").max_wait(Duration::from_secs(5)).into_future();
                let patience = Duration::from_micros((task * 7_919 + round * 104_729) % 20_000);
                let Ok(acquired) = tokio::time::timeout(patience, acquire).await else { continue };
                let Some(permit) = acquired.unwrap().permit() else { continue };
                let now = held.fetch_add(1, SeqCst) + 1;
                assert!(now <= 5 || !permit.is_held(), "{now} permits are held");
                tokio::task::yield_now().await;
                held.fetch_sub(1, SeqCst);
                match round % 2 {
                    0 => drop(permit),
                    _ => permit.release().await.unwrap(),
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let gate = limiter(&server).gate("other", Quota::in_flight(1));
    assert!(gate.try_acquire("x").await.unwrap().permit().is_some());
    let gate = limiters[0].gate("gate", Quota::in_flight(5));
    soon("all units are released", async || remaining(&gate, "x").await == 5).await;
}

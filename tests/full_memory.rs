//! While the memory of Redis is full and it evicts nothing: calls that free units run, and charges and acquires get
//! the failure policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Builder, Event, Gate, Limiter, Observer, OnFailure, Quota, Settlement, Source};
use tidegate_testkit::Server;

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{HOUR, PATIENCE, quotas, soon};

/// The time to live of permits.
const TTL: Duration = Duration::from_secs(2);
const LIMIT: u64 = 5;

/// Starts a server that rejects writes which need memory once [`fill`] was called.
fn start() -> Server {
    Server::process(&["--maxmemory-policy", "noeviction"]).unwrap()
}

fn fill(server: &Server) {
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap(), "OK");
}

fn make_room(server: &Server) {
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap(), "OK");
}

/// Returns settings in a namespace that all limiters of a test share.
fn settings(server: &Server) -> Builder {
    let builder = Limiter::builder().url(server.url()).namespace("full").deadline(PATIENCE);
    builder.permit_ttl(TTL).stderr_warnings(false).on_failure(OnFailure::Error)
}

fn gate(limiter: &Limiter) -> Gate {
    limiter.gate("gate", Quota::in_flight(LIMIT))
}

async fn remaining(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

#[tokio::test]
async fn units_are_refunded_without_memory() {
    let server = start();
    let limiter = settings(&server).build().unwrap();
    let gates = quotas(10, 24 * HOUR).map(|(name, quota)| limiter.gate(name, quota));
    for gate in &gates {
        assert!(gate.check_cost("x", 7).await.unwrap().is_allowed());
    }
    fill(&server);
    for gate in &gates {
        gate.refund("x", 3).await.unwrap();
        assert_eq!(remaining(gate, "x").await, 6, "{gate:?}");
        gate.refund("x", 4).await.unwrap();
        assert_eq!(remaining(gate, "x").await, 10, "{gate:?}");
        let error = gate.check("x").await.unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("OOM"), "{error}");
    }
}

#[tokio::test]
async fn limiter_is_ready_to_charge_only_with_memory() {
    let server = start();
    let limiter = settings(&server).build().unwrap();
    limiter.ready_to_charge(PATIENCE).await.unwrap();
    fill(&server);
    limiter.ready().await.unwrap();
    let error = limiter.ready_to_charge(PATIENCE).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("OOM"), "{error}");
    make_room(&server);
    limiter.ready_to_charge(PATIENCE).await.unwrap();
    soon("its keys expire", async || !server.cli(&["KEYS", "*"]).unwrap().contains(":ready:")).await;
}

#[tokio::test]
async fn reservations_are_settled_without_memory() {
    let server = start();
    let limiter = settings(&server).build().unwrap();
    for (name, quota) in quotas(10, 24 * HOUR) {
        let gate = limiter.gate(name, quota);
        let mut tokens = Vec::new();
        for _ in 0..2 {
            let reserved = limiter.reserve([gate.key("x").cost(4)]).await.unwrap();
            tokens.push(reserved.token().unwrap().clone());
        }
        fill(&server);
        assert_eq!(limiter.commit(&tokens[0], [1]).await.unwrap(), [Settlement::Settled], "{name}");
        // A bucket refills meanwhile, and a refund does not return that again.
        assert!([4, 5].contains(&remaining(&gate, "x").await), "{name}");
        assert_eq!(limiter.cancel(&tokens[1]).await.unwrap(), [Settlement::Settled], "{name}");
        assert!([8, 9].contains(&remaining(&gate, "x").await), "{name}");
        assert!(limiter.reserve([gate.key("x")]).await.unwrap_err().to_string().contains("OOM"));
        make_room(&server);
    }
}

#[derive(Default)]
struct Lapses(AtomicU64);

impl Observer for Lapses {
    fn on(&self, event: &Event<'_>) {
        if let Event::PermitsLapsed { units, .. } = *event {
            self.0.fetch_add(units, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn leases_are_renewed_without_memory() {
    let server = start();
    let lapses = Arc::new(Lapses::default());
    let limiter = settings(&server).observer(lapses.clone()).build().unwrap();
    let permit = gate(&limiter).acquire("x").cost(2).await.unwrap().permit().unwrap();
    fill(&server);
    tokio::time::sleep(3 * TTL).await;
    assert_eq!(lapses.0.load(Ordering::SeqCst), 0);
    assert!(permit.is_held());
    let other = settings(&server).build().unwrap();
    assert_eq!(remaining(&gate(&other), "x").await, LIMIT - 2);
    limiter.shutdown().await;
    assert_eq!(remaining(&gate(&other), "x").await, LIMIT);
    assert_eq!(server.cli(&["ZCARD", "full:1:holders"]).unwrap(), "(integer) 0");
}

#[tokio::test]
async fn units_are_released_without_memory() {
    let server = start();
    let (limiter, other) = (settings(&server).build().unwrap(), settings(&server).build().unwrap());
    let (gate, seen) = (gate(&limiter), gate(&other));
    let all = gate.acquire("x").cost(2).await.unwrap().permit().unwrap();
    let kept = gate.acquire("x").await.unwrap().permit().unwrap();
    let of_other = seen.acquire("x").await.unwrap().permit().unwrap();
    let dropped = gate.acquire("y").cost(2).await.unwrap().permit().unwrap();
    fill(&server);
    all.release().await.unwrap();
    assert_eq!(remaining(&seen, "x").await, LIMIT - 2);
    drop(dropped);
    soon("the dropped permit is released", async || remaining(&seen, "y").await == LIMIT).await;
    kept.release().await.unwrap();
    of_other.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", &gate.redis_key("x").unwrap()]).unwrap(), "(integer) 0");
}

/// Each release travels in a message with acquires, which Redis rejects as a whole.
#[tokio::test]
async fn acquires_without_memory_fail_and_hold_up_no_release() {
    let server = start();
    let (limiter, other) = (settings(&server).build().unwrap(), settings(&server).build().unwrap());
    let (gate, seen) = (gate(&limiter), gate(&other));
    let mut permits = Vec::new();
    for _ in 0..LIMIT {
        permits.push(gate.try_acquire("x").await.unwrap().permit().unwrap());
    }
    fill(&server);
    // The limit is reached, and a denial needs no memory.
    assert!(!gate.try_acquire("x").await.unwrap().is_allowed());
    let is_over = Arc::new(AtomicBool::new(false));
    let acquiring = tokio::spawn({
        let (gate, is_over) = (gate.clone(), is_over.clone());
        async move {
            let mut errors = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                match gate.try_acquire("x").await {
                    Ok(acquired) => assert!(!acquired.is_allowed(), "acquired without memory"),
                    Err(error) => errors.push(error),
                }
            }
            errors
        }
    });
    for (number, permit) in permits.into_iter().enumerate() {
        permit.release().await.unwrap();
        assert_eq!(remaining(&seen, "x").await, number as u64 + 1);
    }
    soon("an acquire failed", async || gate.try_acquire("x").await.is_err()).await;
    is_over.store(true, Ordering::SeqCst);
    let errors = acquiring.await.unwrap();
    assert!(
        errors.iter().all(|error| error.is_unavailable() && error.to_string().contains("OOM")),
        "{errors:?}"
    );
    make_room(&server);
    assert_eq!(gate.acquire("x").cost(LIMIT).await.unwrap().decision().remaining(), 0);
}

#[tokio::test]
async fn failure_policy_decides_acquires_without_memory() {
    let server = start();
    let limiter = settings(&server).instances(2).build().unwrap();
    fill(&server);
    let with = |name, on_failure| limiter.gate(name, Quota::in_flight(LIMIT)).on_failure(on_failure);
    let closed = with("closed", OnFailure::Closed).acquire("x").await.unwrap();
    assert_eq!((closed.is_allowed(), closed.decision().source()), (false, Source::Closed));
    let open = with("open", OnFailure::Open).acquire("x").await.unwrap();
    assert_eq!((open.is_allowed(), open.decision().source()), (true, Source::Open));
    let local = with("local", OnFailure::Local);
    let mut permits = Vec::new();
    for left in [2, 1, 0] {
        let acquired = local.acquire("x").await.unwrap();
        assert_eq!((acquired.decision().source(), acquired.decision().remaining()), (Source::Local, left));
        permits.extend(acquired.permit());
    }
    assert!(!local.acquire("x").await.unwrap().is_allowed());
    // Their units are reported: a report runs.
    let other = settings(&server).build().unwrap().gate("local", Quota::in_flight(LIMIT));
    soon("Redis counts the units", async || remaining(&other, "x").await == LIMIT - 3).await;
    drop(permits);
    soon("they are released", async || remaining(&other, "x").await == LIMIT).await;
}

/// Without a turn for its release, the group's message carries it.
#[tokio::test]
async fn groups_without_memory_hold_up_no_release() {
    let server = start();
    let (limiter, other) = (settings(&server).build().unwrap(), settings(&server).build().unwrap());
    let rate = limiter.gate("rate", Quota::fixed_window(1_000_000, HOUR));
    let (gate, seen) = (gate(&limiter), gate(&other));
    let mut permits = Vec::new();
    for _ in 0..LIMIT {
        permits.push(gate.try_acquire("x").await.unwrap().permit().unwrap());
    }
    fill(&server);
    let is_over = Arc::new(AtomicBool::new(false));
    let acquiring = tokio::spawn({
        let (limiter, rate, gate, is_over) = (limiter.clone(), rate.clone(), gate.clone(), is_over.clone());
        async move {
            while !is_over.load(Ordering::SeqCst) {
                match limiter.acquire_all([rate.key("x"), gate.key("x")]).await {
                    Ok(group) => assert!(!group.is_allowed(), "acquired without memory"),
                    Err(error) => assert!(error.to_string().contains("OOM"), "{error}"),
                }
            }
        }
    });
    for (number, permit) in permits.into_iter().enumerate() {
        permit.release().await.unwrap();
        assert_eq!(remaining(&seen, "x").await, number as u64 + 1);
    }
    is_over.store(true, Ordering::SeqCst);
    acquiring.await.unwrap();
    make_room(&server);
    assert_eq!(remaining(&rate, "x").await, 1_000_000, "a rejected group charges nothing");
}

//! Injects a fault, observes it from each side, and repairs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Error, Event, Gate, Observer, OnFailure, Source};

use super::all::Fault;
use super::scene::{KEY, Scene};
use super::table::Row;
use crate::support::fixture::soon;
use crate::support::stalls::{Stalls, extended};

/// Formats the measurement as a row of the table.
pub async fn row(fault: &Fault) -> Row {
    let mut scene = (fault.scene)();
    let check = sent(fault, &mut scene, async |gate| gate.check(KEY).await.err()).await;
    let refund = sent(fault, &mut scene, async |gate| gate.refund(KEY, 1).await.err()).await;
    let error = check.error.as_ref();
    let error_text = error.map_or_else(|| "-".to_owned(), ToString::to_string);
    assert!(!error_text.contains(KEY), "an error contains the whole key: {error_text}");
    [
        fault.name.to_owned(),
        check.times(),
        refund.times(),
        // The connection must have the same outcome in both calls.
        if check.connection == refund.connection { check.connection } else { "differs" }.to_owned(),
        counts_for_the_breaker(fault, &mut scene).await.to_owned(),
        error_text,
        error.map_or_else(|| "-".to_owned(), predicates),
        policy(fault, &mut scene).await.to_owned(),
    ]
}

struct Sent {
    calls: u64,
    connection: &'static str,
    error: Option<Error>,
}

impl Sent {
    fn times(&self) -> String {
        match self.calls {
            0 => "never".to_owned(),
            1 => "once".to_owned(),
            2 => "twice".to_owned(),
            times => format!("{times} times"),
        }
    }
}

/// Makes one call during the fault, with a limiter that is healthy before and after it.
async fn sent(fault: &Fault, scene: &mut Scene, check: impl AsyncFnOnce(&Gate) -> Option<Error>) -> Sent {
    let limiter = scene.limiter(|builder| builder.on_failure(OnFailure::Error).breaker(false));
    let gate = scene.gate(&limiter);
    ensure_healthy(fault, &gate).await;
    (fault.make)(scene);
    let (calls, connections) = (scene.wire.calls(), scene.wire.connections());
    let stalls = Stalls::watch(&["self".to_owned()]);
    let start = Instant::now();
    let error = check(&gate).await;
    let took = start.elapsed();
    // The bound holds under any fault.
    let max_wait = extended(scene.deadline + Duration::from_millis(250), stalls.end().worst());
    assert!(took < max_wait, "the check took {took:?}, more than {max_wait:?}");
    let calls = scene.wire.calls() - calls;
    (fault.repair)(scene);
    soon("Redis decides again", async || gate.check(KEY).await.is_ok()).await;
    let made = scene.wire.connections() - connections;
    soon("one connection is left", async || scene.wire.open() == 1).await;
    let connection = match (fault.is_connected, made) {
        (false, _) => "not made",
        (true, 0) => "kept",
        (true, _) => "given up",
    };
    drop((gate, limiter));
    soon("no connection is left", async || scene.wire.open() == 0).await;
    Sent { calls, connection, error }
}

async fn ensure_healthy(fault: &Fault, gate: &Gate) {
    if fault.is_connected {
        // Repeated, since a busy machine may exceed the short deadline of these limiters.
        soon("Redis decides", async || gate.check(KEY).await.is_ok()).await;
        // Loads the script of the gate.
        soon("Redis refunds", async || gate.refund(KEY, 1).await.is_ok()).await;
        // A connection younger than this is not replaced by another.
        tokio::time::sleep(Duration::from_millis(11)).await;
    }
}

#[derive(Clone, Default)]
struct Opened(Arc<AtomicBool>);

impl Observer for Opened {
    fn on(&self, event: &Event<'_>) {
        if let Event::BreakerOpened = event {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

async fn counts_for_the_breaker(fault: &Fault, scene: &mut Scene) -> &'static str {
    let opened = Opened::default();
    let limiter = scene.limiter(|builder| builder.on_failure(OnFailure::Error).observer(opened.clone()));
    let gate = scene.gate(&limiter);
    ensure_healthy(fault, &gate).await;
    (fault.make)(scene);
    for _ in 0..20 {
        let _ = gate.check(KEY).await;
    }
    (fault.repair)(scene);
    soon("Redis decides again", async || gate.check(KEY).await.is_ok()).await;
    if opened.0.load(Ordering::SeqCst) { "counts" } else { "does not count" }
}

/// The decision of a check for which the failure policy replaces Redis.
async fn policy(fault: &Fault, scene: &mut Scene) -> &'static str {
    let mut found = Vec::new();
    for (policy, source) in [
        (OnFailure::Local, Source::Local),
        (OnFailure::Closed, Source::Closed),
        (OnFailure::Open, Source::Open),
    ] {
        let limiter = scene.limiter(|builder| builder.on_failure(policy).breaker(false));
        let gate = scene.gate(&limiter);
        ensure_healthy(fault, &gate).await;
        (fault.make)(scene);
        found.push(match gate.check(KEY).await {
            Ok(decision) if decision.source() == Source::Redis => "-",
            Ok(decision) if decision.source() == source => "applies",
            Ok(_) => "another policy applies",
            Err(_) => "does not apply",
        });
        (fault.repair)(scene);
        soon("Redis decides again", async || {
            gate.check(KEY).await.is_ok_and(|decision| decision.source() == Source::Redis)
        })
        .await;
    }
    found.dedup();
    if found.len() == 1 { found[0] } else { "differs" }
}

/// Returns the predicates that hold for the error.
fn predicates(error: &Error) -> String {
    let predicates = [
        ("is_timeout", error.is_timeout()),
        ("is_unavailable", error.is_unavailable()),
        ("is_config", error.is_config()),
        ("is_over_capacity", error.is_over_capacity()),
        ("is_corrupt_state", error.is_corrupt_state()),
        ("is_shut_down", error.is_shut_down()),
    ];
    let names: Vec<&str> = predicates.into_iter().filter_map(|(name, holds)| holds.then_some(name)).collect();
    names.join(", ")
}

//! Injects a fault, observes it from each side, and repairs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Error, Gate, Observer, OnFailure, Source};

use super::all::Fault;
use super::scene::{KEY, Scene, gate};
use super::table::Row;
use crate::support::fixture::soon;

/// Formats the measurement as a row of the table.
pub async fn row(fault: &Fault) -> Row {
    let mut scene = (fault.scene)();
    let take = sent(fault, &mut scene, async |gate| gate.check(KEY).await.err()).await;
    let give_back = sent(fault, &mut scene, async |gate| gate.refund(KEY, 1).await.err()).await;
    let error = take.error.as_ref();
    let said = error.map_or_else(|| "-".to_owned(), ToString::to_string);
    assert!(!said.contains(KEY), "a key is told whole: {said}");
    [
        fault.name.to_owned(),
        take.times(),
        give_back.times(),
        // The connection must have the same outcome in both calls.
        if take.connection == give_back.connection { take.connection } else { "one or the other" }.to_owned(),
        counts_for_the_breaker(fault, &mut scene).await.to_owned(),
        said,
        error.map_or_else(|| "-".to_owned(), truths),
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

/// Measures one check during the fault, by a limiter that is healthy before and after it.
async fn sent(fault: &Fault, scene: &mut Scene, ask: impl AsyncFnOnce(&Gate) -> Option<Error>) -> Sent {
    let limiter = scene.limiter(|builder| builder.on_failure(OnFailure::Error).breaker(false));
    let gate = gate(&limiter);
    well_before(fault, &gate).await;
    (fault.make)(scene);
    let (calls, connections) = (scene.wire.calls(), scene.wire.connections());
    let start = Instant::now();
    let error = ask(&gate).await;
    // No caller waits longer, under any fault.
    let latest = scene.deadline + Duration::from_millis(250);
    assert!(start.elapsed() < latest, "{:?}, where {latest:?} is the latest", start.elapsed());
    let calls = scene.wire.calls() - calls;
    (fault.mend)(scene);
    soon("Redis decides again", async || gate.check(KEY).await.is_ok()).await;
    let made = scene.wire.connections() - connections;
    soon("no other connection is left", async || scene.wire.open() == 1).await;
    let connection = match (fault.is_connected, made) {
        (false, _) => "not made",
        (true, 0) => "kept",
        (true, _) => "given up",
    };
    drop((gate, limiter));
    soon("nor is this one", async || scene.wire.open() == 0).await;
    Sent { calls, connection, error }
}

async fn well_before(fault: &Fault, gate: &Gate) {
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
    fn breaker(&self, is_open: bool) {
        self.0.fetch_or(is_open, Ordering::SeqCst);
    }
}

async fn counts_for_the_breaker(fault: &Fault, scene: &mut Scene) -> &'static str {
    let opened = Opened::default();
    let limiter = scene.limiter(|builder| builder.on_failure(OnFailure::Error).observer(opened.clone()));
    let gate = gate(&limiter);
    well_before(fault, &gate).await;
    (fault.make)(scene);
    for _ in 0..20 {
        let _ = gate.check(KEY).await;
    }
    (fault.mend)(scene);
    soon("Redis decides again", async || gate.check(KEY).await.is_ok()).await;
    if opened.0.load(Ordering::SeqCst) { "counts" } else { "does not" }
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
        let gate = gate(&limiter);
        well_before(fault, &gate).await;
        (fault.make)(scene);
        found.push(match gate.check(KEY).await {
            Ok(decision) if decision.source() == Source::Redis => "-",
            Ok(decision) if decision.source() == source => "answers",
            Ok(_) => "another answers",
            Err(_) => "does not",
        });
        (fault.mend)(scene);
        soon("Redis decides again", async || {
            gate.check(KEY).await.is_ok_and(|decision| decision.source() == Source::Redis)
        })
        .await;
    }
    found.dedup();
    if found.len() == 1 { found[0] } else { "differs" }
}

/// Returns the predicates that hold for the error.
fn truths(error: &Error) -> String {
    let questions = [
        ("is_timeout", error.is_timeout()),
        ("is_unavailable", error.is_unavailable()),
        ("is_config", error.is_config()),
        ("is_over_capacity", error.is_over_capacity()),
        ("is_corrupt_state", error.is_corrupt_state()),
        ("is_shut_down", error.is_shut_down()),
    ];
    let names: Vec<&str> = questions.into_iter().filter_map(|(name, is_so)| is_so.then_some(name)).collect();
    names.join(", ")
}

//! A limiter recovers from lost scripts, restarts of Redis and dropped checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use tidegate::{Limiter, Quota, Rate};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, History, PATIENCE, builder, limiter, quotas, soon};
use crate::support::stalls::{LostTime, extended};

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_exact_while_scripts_are_flushed_every_millisecond() {
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deny_cache(Duration::ZERO).build().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let flushing = tokio::spawn({
        let (mut connection, is_over) =
            (client.get_multiplexed_async_connection().await.unwrap(), is_over.clone());
        async move {
            while !is_over.load(Ordering::Relaxed) {
                let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let mut tasks = Vec::new();
    let start = Instant::now();
    for (name, quota) in quotas(50, Duration::from_millis(300)) {
        for _ in 0..4 {
            let gate = limiter.gate(name, quota);
            let task = tokio::spawn(async move {
                let mut history = History::default();
                // On a busy machine the first denial may come late.
                let is_denied = |history: &History| history.admitted() < history.checks();
                while start.elapsed() < Duration::from_secs(1)
                    || (!is_denied(&history) && start.elapsed() < PATIENCE)
                {
                    history.add(&gate.check("hot").await.unwrap());
                }
                history
            });
            tasks.push((quota, task));
        }
    }
    let mut histories: Vec<(Quota, History)> = Vec::new();
    for (quota, task) in tasks {
        let history = task.await.unwrap();
        match histories.last_mut() {
            Some((last, all)) if *last == quota => all.merge(&history),
            _ => histories.push((quota, history)),
        }
    }
    is_over.store(true, Ordering::Relaxed);
    flushing.await.unwrap();
    for (quota, history) in histories {
        assert!(history.admitted() < history.checks(), "{quota}: no load");
        history.assert_exact(&quota);
    }
    let stats = server.cli(&["INFO", "errorstats"]).unwrap();
    assert!(stats.contains("errorstat_NOSCRIPT"), "no call found its script flushed: {stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_succeed_after_a_script_flush() {
    let server = Server::process(&[]).unwrap();
    let limiter = limiter(&server);
    let flush = || assert_eq!(server.cli(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
    for (name, quota) in quotas(10, 24 * HOUR) {
        let gate = limiter.gate(name, quota);
        flush();
        gate.penalize("x", 4).await.unwrap();
        flush();
        gate.refund("x", 1).await.unwrap();
        flush();
        gate.block("x", HOUR).await.unwrap();
        flush();
        gate.unblock("x").await.unwrap();
        flush();
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 7, "{quota}");
        flush();
        gate.reset("x").await.unwrap();
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 10, "{quota}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limiter_recovers_from_a_restart_of_redis() {
    let mut server = Server::process(&[]).unwrap();
    let gate = limiter(&server).gate("restart", Quota::fixed_window(1_000_000, HOUR));
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (gate, is_over) = (gate.clone(), is_over.clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Err(error) = gate.key("hot").check().await {
                        assert!(error.is_unavailable(), "{error}");
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            })
        })
        .collect();
    for _ in 0..3 {
        soon("checks pass", async || {
            gate.peek("hot").await.is_ok_and(|peek| peek.remaining() < peek.limit())
        })
        .await;
        server = tokio::task::spawn_blocking(move || {
            server.restart().unwrap();
            server
        })
        .await
        .unwrap();
        // Reconnects back off for at most one second.
        let (lost, restarted) = (LostTime::start(&["self".to_owned()]), Instant::now());
        soon("Redis decides again", async || gate.check("hot").await.is_ok()).await;
        let (took, stalled) = (restarted.elapsed(), lost.end());
        assert!(took < extended(Duration::from_secs(2), stalled), "{took:?}, stalled for {stalled:?}");
    }
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_check_does_not_affect_later_checks() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let gate = limiter.gate("step", Quota::token_bucket(1_000, Rate::per_day(1)));
        let dropped = limiter.gate("dropped", Quota::fixed_window(1_000_000, HOUR));
        let droppers: Vec<_> = (0..4)
            .map(|_| {
                let gate = dropped.clone();
                tokio::spawn(async move {
                    for _ in 0..500 {
                        let patience = Duration::from_micros(rand::rng().random_range(0..1_500));
                        tokio::select! {
                            decision = gate.check("x") => assert!(decision.unwrap().is_allowed()),
                            () = spin(patience) => {}
                        }
                    }
                })
            })
            .collect();
        // Each decision must be that of this check, not that of a dropped check.
        for checks in 1..=1_000 {
            let decision = gate.check("counted").await.unwrap();
            assert_eq!((decision.gate(), decision.limit()), ("step", 1_000));
            assert_eq!(decision.remaining(), 1_000 - checks);
        }
        for dropper in droppers {
            dropper.await.unwrap();
        }
        let used = 1_000_000 - dropped.peek("x").await.unwrap().remaining();
        assert!(used <= 4 * 500, "{used} units charged for 2,000 checks");
    }
}

/// Waits with a finer resolution than the timer of the runtime, which is 1 ms.
async fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        tokio::task::yield_now().await;
    }
}

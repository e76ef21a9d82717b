//! A limiter notifies its observer of every decision and every failure once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Event, Gate, Limiter, Observer, OnFailure, Quota};

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{HOUR, builder, closed_port, namespace, soon};

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn record(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    /// Returns the notifications since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observer for Recorder {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Decided(decision) => {
                let word = if decision.is_allowed() { "allowed" } else { "denied" };
                self.record(format!("{} {word} by {}", decision.gate(), decision.source()));
            }
            Event::Failed { gate, error } => {
                assert_eq!(error.gate(), Some(gate), "{error}");
                let word = if error.is_unavailable() { "unavailable" } else { "corrupt" };
                self.record(format!("{gate} failed: {word}"));
            }
            Event::Called { checks, groups, took } => {
                assert!(took < HOUR);
                let merged = if groups == checks { String::new() } else { format!(" in {groups}") };
                self.record(format!("called for {checks}{merged}"));
            }
            _ => {}
        }
    }
}

const QUOTA: Quota = Quota::fixed_window(1, HOUR);

fn gates(limiter: &Limiter) -> [Gate; 2] {
    ["a", "b"].map(|name| limiter.gate(name, QUOTA))
}

#[tokio::test]
async fn each_decision_is_notified_once() {
    let (server, recorder) = (tidegate_testkit::shared(), Recorder::default());
    let redis = builder(server.url()).deny_cache(Duration::ZERO).observer(recorder.clone()).build().unwrap();
    let memory = Limiter::builder().in_memory().observer(recorder.clone()).build().unwrap();
    for (limiter, by) in [(redis, "redis"), (memory, "memory")] {
        let [a, b] = gates(&limiter);
        let _ = a.check("x").await.unwrap();
        assert_eq!(recorder.take(), ["called for 1".to_owned(), format!("a allowed by {by}")]);
        let _ = a.check("x").await.unwrap();
        assert_eq!(recorder.take(), ["called for 1".to_owned(), format!("a denied by {by}")]);
        let _ = a.check_many(["x", "y", "z"]).await;
        let many = ["called for 3", "a denied", "a allowed", "a allowed"];
        let many =
            many.map(|text| if text.starts_with('a') { format!("{text} by {by}") } else { text.into() });
        assert_eq!(recorder.take(), many);
        let _ = limiter.check_all([a.key("x"), b.key("x")]).await.unwrap();
        // Gate b alone would have admitted the check. The group was denied, so b made no decision to report.
        assert_eq!(recorder.take(), ["called for 1".to_owned(), format!("a denied by {by}")]);
        let _ = a.peek("x").await.unwrap();
        assert_eq!(recorder.take(), ["called for 1"], "a peek is not a decision");
        let _ = limiter.check_all([a.key("x").cost(0), b.key("x")]).await.unwrap();
        assert_eq!(recorder.take(), ["called for 1".to_owned(), format!("b allowed by {by}")]);
        a.reserve("r", 1).await.unwrap().cancel().await.unwrap();
        assert_eq!(recorder.take(), ["called for 1".to_owned(), format!("a allowed by {by}")]);
        let _ = a.until_allowed("x", Duration::ZERO).await.unwrap();
        assert_eq!(recorder.take(), ["called for 1".to_owned(), format!("a denied by {by}")]);
        assert!(a.check_cost("x", 2).await.unwrap_err().is_over_capacity());
        assert!(
            recorder.take().iter().all(|text| text.starts_with("called")),
            "an error of the caller is not a failure"
        );
    }
}

#[tokio::test]
async fn each_failure_and_the_decision_made_instead_are_notified_once() {
    let recorder = Recorder::default();
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = builder(&url).observer(recorder.clone()).build().unwrap();
    let [a, b] = gates(&limiter);
    a.check("x").await.unwrap_err();
    assert_eq!(recorder.take(), ["called for 1", "a failed: unavailable"]);
    a.refund("x", 1).await.unwrap_err();
    assert_eq!(recorder.take(), ["a failed: unavailable"]);
    let _ = a.clone().on_failure(OnFailure::Open).check("x").await.unwrap();
    assert_eq!(recorder.take(), ["called for 1", "a failed: unavailable", "a allowed by open"]);
    limiter.check_all([a.key("x"), b.key("x")]).await.unwrap_err();
    assert_eq!(recorder.take(), ["called for 1", "a failed: unavailable", "b failed: unavailable"]);
    let [a, b] = [a, b].map(|gate| gate.on_failure(OnFailure::Closed));
    let _ = limiter.check_all([a.key("x"), b.key("x")]).await.unwrap();
    assert_eq!(
        recorder.take(),
        [
            "called for 1",
            "a failed: unavailable",
            "b failed: unavailable",
            "a denied by closed",
            "b denied by closed"
        ]
    );
}

#[tokio::test]
async fn corrupt_key_is_a_failure_of_its_gate_only() {
    let (server, recorder) = (tidegate_testkit::shared(), Recorder::default());
    let limiter = builder(server.url()).observer(recorder.clone()).build().unwrap();
    let [a, b] = gates(&limiter);
    server.cli(&["SET", &b.redis_key("x").unwrap(), "text"]).unwrap();
    limiter.check_all([a.key("x"), b.key("x")]).await.unwrap_err();
    assert_eq!(recorder.take(), ["called for 1", "b failed: corrupt"]);
    let _ = b.check_many(["w", "x", "y"]).await;
    assert_eq!(
        recorder.take(),
        ["called for 3", "b allowed by redis", "b failed: corrupt", "b allowed by redis"]
    );
    let held = limiter.gate("held", Quota::in_flight(1));
    server.cli(&["SET", &held.redis_key("x").unwrap(), "text"]).unwrap();
    limiter.acquire_all([a.key("y"), held.key("x")]).await.unwrap_err();
    let events = recorder.take();
    assert_eq!(
        events.iter().filter(|text| !text.starts_with("called")).collect::<Vec<_>>(),
        ["held failed: corrupt"]
    );
}

#[tokio::test]
async fn merged_checks_are_reported_as_one_group() {
    let (server, recorder) = (tidegate_testkit::shared(), Recorder::default());
    let limiter = builder(server.url()).observer(recorder.clone()).build().unwrap();
    let gate = limiter.gate("a", Quota::fixed_window(100, HOUR));
    let checks = (0..40).map(|number| gate.check(if number < 30 { "hot" } else { "cold" }));
    futures_util::future::join_all(checks).await.into_iter().for_each(|decision| {
        assert!(decision.unwrap().is_allowed());
    });
    let mut calls = recorder.take();
    calls.retain(|text| text.starts_with("called"));
    let direct = calls.iter().filter(|text| *text == "called for 1").count();
    calls.retain(|text| text != "called for 1");
    // Four callers sent their own check, more if one was answered before all had been made. The others share one call.
    assert!((4..20).contains(&direct), "{direct}");
    assert_eq!(calls, [format!("called for {} in 2", 40 - direct)]);
}

#[tokio::test]
async fn cached_denial_makes_no_call() {
    let (server, recorder) = (tidegate_testkit::shared(), Recorder::default());
    let limiter = builder(server.url()).deny_cache(HOUR).observer(recorder.clone()).build().unwrap();
    let [a, _] = gates(&limiter);
    for _ in 0..3 {
        let _ = a.check("x").await.unwrap();
    }
    let from_redis = ["called for 1", "a allowed by redis", "called for 1", "a denied by redis"];
    assert_eq!(recorder.take(), [from_redis.as_slice(), &["a denied by deny_cache"]].concat());
}

/// Panics at each event once it is armed.
#[derive(Clone, Default)]
struct Panics(Arc<AtomicBool>);

impl Observer for Panics {
    fn on(&self, _: &Event<'_>) {
        assert!(!self.0.load(Ordering::SeqCst), "a planted panic of the observer");
    }
}

#[tokio::test]
async fn panic_of_an_observer_reaches_no_caller_and_leaks_no_unit() {
    let panics = Panics(Arc::new(AtomicBool::new(true)));
    let limiter = Limiter::builder().in_memory().observer(panics).build().unwrap();
    let gate = limiter.gate("jobs", Quota::in_flight(1));
    for _ in 0..3 {
        let caller = gate.clone();
        let used = tokio::spawn(async move { caller.acquire("x").await.unwrap().permit() });
        drop(used.await.expect("the panic stays in the observer"));
        soon("the unit is free", async || gate.peek("x").await.unwrap().remaining() == 1).await;
    }
}

#[tokio::test]
async fn panic_of_an_observer_does_not_end_the_heartbeats() {
    let (server, panics) = (tidegate_testkit::shared(), Panics::default());
    let namespace = namespace();
    let ttl = Duration::from_secs(1);
    let settings = builder(server.url()).namespace(&namespace).permit_ttl(ttl).observer(panics.clone());
    let limiter = settings.build().unwrap();
    let gate = limiter.gate("jobs", Quota::in_flight(1));
    let permit = gate.acquire("x").await.unwrap().permit().unwrap();
    panics.0.store(true, Ordering::SeqCst);
    // Redis loses the lease, so the next heartbeat opens another one and restores the unit.
    server.cli(&["DEL", &format!("{namespace}:1:holders")]).unwrap();
    tokio::time::sleep(2 * ttl).await;
    let is_held = permit.is_held();
    panics.0.store(false, Ordering::SeqCst);
    assert!(is_held, "the heartbeats have restored it");
}

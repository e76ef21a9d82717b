//! An observer hears of every decision and every failure once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Decision, Error, Gate, Limiter, Observer, OnFailure, Quota};

use crate::support::fixture::{HOUR, builder, closed_port};

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn say(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    /// What was heard since the last time.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observer for Heard {
    fn decided(&self, decision: &Decision) {
        let word = if decision.is_allowed() { "allowed" } else { "denied" };
        self.say(format!("{} {word} by {}", decision.gate(), decision.source()));
    }

    fn failed(&self, gate: &str, error: &Error) {
        assert_eq!(error.gate(), Some(gate), "{error}");
        let word = if error.is_unavailable() { "unavailable" } else { "corrupt" };
        self.say(format!("{gate} failed: {word}"));
    }

    fn called(&self, asks: usize, groups: usize, took: Duration) {
        assert!(took < HOUR);
        let merged = if groups == asks { String::new() } else { format!(" in {groups}") };
        self.say(format!("called for {asks}{merged}"));
    }
}

const QUOTA: Quota = Quota::fixed_window(1, HOUR);

fn gates(limiter: &Limiter) -> [Gate; 2] {
    ["a", "b"].map(|name| limiter.gate(name, QUOTA))
}

#[tokio::test]
async fn each_decision_is_told_once() {
    let (server, heard) = (harness::shared(), Heard::default());
    let redis = builder(server.url()).deny_cache(Duration::ZERO).observer(heard.clone()).build().unwrap();
    let memory = Limiter::builder().in_memory().observer(heard.clone()).build().unwrap();
    for (limiter, by) in [(redis, "redis"), (memory, "memory")] {
        let [a, b] = gates(&limiter);
        let _ = a.check("x").await.unwrap();
        assert_eq!(heard.take(), ["called for 1".to_owned(), format!("a allowed by {by}")]);
        let _ = a.check("x").await.unwrap();
        assert_eq!(heard.take(), ["called for 1".to_owned(), format!("a denied by {by}")]);
        let _ = a.check_many(["x", "y", "z"]).await;
        let many = ["called for 3", "a denied", "a allowed", "a allowed"];
        let many =
            many.map(|text| if text.starts_with('a') { format!("{text} by {by}") } else { text.into() });
        assert_eq!(heard.take(), many);
        let _ = limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap();
        // b would have let it pass, and nothing passed.
        assert_eq!(heard.take(), ["called for 1".to_owned(), format!("a denied by {by}")]);
        let _ = a.peek("x").await.unwrap();
        assert_eq!(heard.take(), ["called for 1"], "a peek decides nothing");
        a.reserve("r", 1).await.unwrap().cancel().await.unwrap();
        assert_eq!(heard.take(), ["called for 1".to_owned(), format!("a allowed by {by}")]);
        let _ = a.until_allowed("x", Duration::ZERO).await.unwrap();
        assert_eq!(heard.take(), ["called for 1".to_owned(), format!("a denied by {by}")]);
        assert!(a.check_cost("x", 2).await.unwrap_err().is_over_capacity());
        assert!(
            heard.take().iter().all(|text| text.starts_with("called")),
            "the caller's fault is no failure"
        );
    }
}

#[tokio::test]
async fn each_failure_is_told_once_and_so_is_what_was_decided_instead() {
    let heard = Heard::default();
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = builder(&url).observer(heard.clone()).build().unwrap();
    let [a, b] = gates(&limiter);
    a.check("x").await.unwrap_err();
    assert_eq!(heard.take(), ["called for 1", "a failed: unavailable"]);
    a.refund("x", 1).await.unwrap_err();
    assert_eq!(heard.take(), ["a failed: unavailable"]);
    let _ = a.clone().on_failure(OnFailure::Open).check("x").await.unwrap();
    assert_eq!(heard.take(), ["called for 1", "a failed: unavailable", "a allowed by open"]);
    limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap_err();
    assert_eq!(heard.take(), ["called for 1", "a failed: unavailable", "b failed: unavailable"]);
    let [a, b] = [a, b].map(|gate| gate.on_failure(OnFailure::Closed));
    let _ = limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap();
    assert_eq!(
        heard.take(),
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
async fn of_a_broken_key_its_gate_alone_is_told() {
    let (server, heard) = (harness::shared(), Heard::default());
    let limiter = builder(server.url()).observer(heard.clone()).build().unwrap();
    let [a, b] = gates(&limiter);
    server.cli(&["SET", &b.redis_key("x").unwrap(), "text"]).unwrap();
    limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap_err();
    assert_eq!(heard.take(), ["called for 1", "b failed: corrupt"]);
    let _ = b.check_many(["w", "x", "y"]).await;
    assert_eq!(
        heard.take(),
        ["called for 3", "b allowed by redis", "b failed: corrupt", "b allowed by redis"]
    );
}

#[tokio::test]
async fn equal_asks_are_told_as_one_group() {
    let (server, heard) = (harness::shared(), Heard::default());
    let limiter = builder(server.url()).observer(heard.clone()).build().unwrap();
    let gate = limiter.gate("a", Quota::fixed_window(100, HOUR));
    let asking = (0..40).map(|number| gate.check(if number < 30 { "hot" } else { "cold" }));
    futures_util::future::join_all(asking).await.into_iter().for_each(|decision| {
        assert!(decision.unwrap().is_allowed());
    });
    let mut heard = heard.take();
    heard.retain(|text| text.starts_with("called"));
    heard.sort();
    // Some went at once and by themselves.
    assert_eq!(heard, [vec!["called for 1"; 4], vec!["called for 36 in 2"]].concat());
}

#[tokio::test]
async fn what_is_denied_from_memory_calls_nobody() {
    let (server, heard) = (harness::shared(), Heard::default());
    let limiter = builder(server.url()).observer(heard.clone()).build().unwrap();
    let [a, _] = gates(&limiter);
    for _ in 0..3 {
        let _ = a.check("x").await.unwrap();
    }
    let told = ["called for 1", "a allowed by redis", "called for 1", "a denied by redis"];
    assert_eq!(heard.take(), [told.as_slice(), &["a denied by deny_cache"]].concat());
}

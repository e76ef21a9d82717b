//! Calls that no request waits for have more time than a check: readiness, heartbeats, operators' calls.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate::admin::Inspector;
use tidegate::{Builder, Event, Limiter, Observer, Permit, Quota, Switch};
use tidegate_testkit::{Fault, Proxy, Server, shared};

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{closed_port, namespace, soon};

/// The delay of each reply: longer than a check may take, and shorter than the calls of this file.
const SLOW: Duration = Duration::from_millis(200);
const TTL: Duration = Duration::from_secs(2);

/// Returns the default settings, with a deadline of checks of 100 ms.
fn defaults(url: &str) -> Builder {
    Limiter::builder().url(url).namespace(&namespace()).stderr_warnings(false)
}

/// Notes the codes of the limiter's warnings.
#[derive(Default)]
struct Codes(Mutex<BTreeSet<&'static str>>);

impl Observer for Codes {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().insert(warning.code());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

impl Codes {
    fn has(&self, code: &str) -> bool {
        self.0.lock().unwrap().contains(code)
    }
}

/// Acquires a permit of a process whose Redis then gets the fault.
async fn held(proxy: &Proxy, builder: Builder, fault: Fault) -> (Limiter, Permit) {
    let limiter = builder.permit_ttl(TTL).build().unwrap();
    limiter.ready().await.unwrap();
    let acquired = limiter.gate("jobs", Quota::in_flight(1)).acquire("x").await.unwrap();
    proxy.set(fault);
    (limiter, acquired.permit().unwrap())
}

#[tokio::test]
async fn ready_waits_for_a_redis_that_is_slower_than_a_check() {
    let server = shared();
    let proxy = Proxy::start(server.url()).unwrap();
    proxy.set(Fault::Slow(SLOW));
    let limiter = defaults(&proxy.url()).build().unwrap();
    limiter.ready().await.unwrap();
    assert!(limiter.ready_within(SLOW / 2).await.unwrap_err().is_timeout());
}

#[tokio::test]
async fn ready_waits_for_a_redis_that_starts_later() {
    let server = shared();
    let proxy = Proxy::start(server.url()).unwrap();
    proxy.set(Fault::Refuse);
    let limiter = defaults(&proxy.url()).build().unwrap();
    let starts = async {
        tokio::time::sleep(3 * SLOW).await;
        proxy.set(Fault::None);
    };
    let (ready, ()) = tokio::join!(limiter.ready(), starts);
    ready.unwrap();
}

#[tokio::test]
async fn ready_ends_after_its_patience_with_the_cause() {
    let limiter = defaults(&format!("redis://127.0.0.1:{}", closed_port())).build().unwrap();
    let begun = Instant::now();
    let error = limiter.ready_within(2 * SLOW).await.unwrap_err();
    assert!(begun.elapsed() > SLOW, "it retries");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn rejected_credentials_end_ready_at_once() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]).unwrap();
    let begun = Instant::now();
    assert!(defaults(server.url()).build().unwrap().ready().await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn process_whose_redis_is_slow_is_counted_and_follows_a_switch() {
    let server = shared();
    let proxy = Proxy::start(server.url()).unwrap();
    proxy.set(Fault::Slow(SLOW));
    let namespace = namespace();
    let slow = defaults(&proxy.url()).namespace(&namespace).build().unwrap();
    let gate = slow.gate("api", Quota::sliding_log(1, TTL));
    let operator = defaults(server.url()).namespace(&namespace).build().unwrap();
    let inspector = Inspector::new(&operator).unwrap();
    // Enough checks without an answer to open the circuit breaker.
    for _ in 0..10 {
        assert!(gate.check("x").await.is_ok());
    }
    soon("it is counted", async || inspector.instances().await.unwrap() == 1).await;
    operator.control().switch("api", Switch::Closed, None).await.unwrap();
    soon("it follows", async || slow.control().current_switch("api") == Some(Switch::Closed)).await;
}

#[tokio::test]
async fn permits_of_a_process_whose_redis_is_slow_stay_held() {
    let server = shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let (_limiter, permit) = held(&proxy, defaults(&proxy.url()), Fault::Slow(SLOW)).await;
    assert!(tokio::time::timeout(2 * TTL, permit.lapsed()).await.is_err());
}

#[tokio::test]
async fn heartbeats_without_an_answer_are_reported() {
    let server = shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let codes = Arc::new(Codes::default());
    let builder = defaults(&proxy.url()).observer(codes.clone());
    let (_limiter, _permit) = held(&proxy, builder, Fault::BlackHole).await;
    soon("permits", async || codes.has("permits-unrenewed")).await;

    proxy.set(Fault::None);
    let codes = Arc::new(Codes::default());
    let limiter = defaults(&proxy.url()).observer(codes.clone()).build().unwrap();
    limiter.ready().await.unwrap();
    proxy.set(Fault::BlackHole);
    soon("instances", async || codes.has("heartbeat-unanswered")).await;
}

#[tokio::test]
async fn shutdown_during_a_heartbeat_reports_no_failure() {
    let server = shared();
    // The second heartbeat begins within a second of the first check.
    let shutdowns = (0..40).map(|step| {
        let proxy = Proxy::start(server.url()).unwrap();
        proxy.set(Fault::Slow(SLOW));
        let codes = Arc::new(Codes::default());
        let limiter = defaults(&proxy.url()).deadline(10 * SLOW).observer(codes.clone()).build().unwrap();
        async move {
            assert!(limiter.gate("api", Quota::sliding_log(1, TTL)).check("x").await.is_ok());
            tokio::time::sleep(step * SLOW / 8).await;
            limiter.shutdown().await;
            // As at the end of the runtime that the connection lives on.
            proxy.cut();
            tokio::time::sleep(2 * SLOW).await;
            codes
        }
    });
    for codes in join_all(shutdowns).await {
        assert_eq!(*codes.0.lock().unwrap(), BTreeSet::new());
    }
}

#[tokio::test]
async fn calls_of_an_operator_wait_for_a_redis_that_is_slower_than_a_check() {
    let server = shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let limiter = defaults(&proxy.url()).build().unwrap();
    limiter.ready().await.unwrap();
    proxy.set(Fault::Slow(SLOW));
    let control = limiter.control();
    control.switch("api", Switch::Closed, None).await.unwrap();
    assert_eq!(control.current_switch("api"), Some(Switch::Closed));
    assert_eq!(control.overrides().await.unwrap().len(), 1);
    control.end_switch("api").await.unwrap();
    let health = limiter.health().await;
    assert!(health.server().is_ok(), "{health}");
    Inspector::new(&limiter).unwrap().instances().await.unwrap();
}

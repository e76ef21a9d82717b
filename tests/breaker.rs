//! The circuit breaker stops calls to a Redis that does not reply, until it replies again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate::{Builder, Event, Gate, Limiter, ManualClock, Observer, OnFailure, Quota, Source};
use tidegate_testkit::Server;
use tokio::net::TcpListener;

use crate::support::black_hole::black_hole;
use crate::support::door::port;
use crate::support::fixture::{HOUR, PATIENCE, Paused, builder_as_is, calls, closed_port, soon};
use crate::support::hear::{end_before_a_reply, lead_to};

const DEADLINE: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
struct Events {
    opened: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    called: Arc<AtomicUsize>,
}

impl Observer for Events {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::BreakerOpened => self.opened.fetch_add(1, Ordering::SeqCst),
            Event::BreakerClosed => self.closed.fetch_add(1, Ordering::SeqCst),
            Event::Called { .. } => self.called.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
    }
}

fn settings(url: &str) -> Builder {
    builder_as_is(url).deadline(DEADLINE).on_failure(OnFailure::Error).instances(1)
}

fn gate(limiter: &Limiter) -> Gate {
    limiter.gate("gate", Quota::token_bucket(1_000_000, tidegate::Rate::per_hour(1_000)))
}

/// Checks until the breaker is open, which takes five checks without a reply.
async fn open_breaker(gate: &Gate, events: &Events) {
    for _ in 0..5 {
        let error = gate.check("key").await.unwrap_err();
        assert!(error.is_unavailable() && !error.to_string().contains("breaker"), "{error}");
    }
    assert_eq!(events.opened.load(Ordering::SeqCst), 1);
}

/// Redis closes all connections, for example, and answers on the next one.
#[tokio::test]
async fn checks_that_one_lost_connection_fails_do_not_open_the_breaker() {
    let server = Server::process(&[]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let events = Events::default();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let limiter = settings(&url).deadline(PATIENCE).observer(events.clone()).build().unwrap();
    let gate = gate(&limiter);
    let closing = async {
        for _ in 0..2 {
            end_before_a_reply(&listener).await;
        }
    };
    let checks = join_all((0..32).map(|key: u64| gate.check(key)));
    let (checked, ()) = tokio::join!(checks, closing);
    assert!(checked.iter().filter(|check| check.is_err()).count() > 5, "they share two connections");
    assert_eq!(events.opened.load(Ordering::SeqCst), 0);
    // The pause after the second connection. Checks would fail meanwhile, and count.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (checked, ()) = tokio::join!(gate.check(0), lead_to(&listener, port(server.url())));
    assert!(checked.unwrap().is_allowed());
    assert_eq!(events.opened.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn open_breaker_sends_and_connects_only_for_probes() {
    let hole = black_hole().await;
    let events = Events::default();
    let limiter = settings(&hole.url).observer(events.clone()).build().unwrap();
    let gate = gate(&limiter);
    open_breaker(&gate, &events).await;
    let (start, called) = (Instant::now(), events.called.load(Ordering::SeqCst));
    for _ in 0..10_000 {
        let error = gate.check("key").await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
        assert!(error.to_string().contains("the circuit breaker is open"), "{error}");
    }
    assert!(gate.refund("key", 1).await.unwrap_err().to_string().contains("breaker"));
    assert!(gate.check_many(["a", "b"]).await.iter().all(Result::is_err));
    assert_eq!(events.called.load(Ordering::SeqCst), called, "an open breaker sends no calls");
    // Each probe opens at most one connection. Probes are at least 25 ms apart.
    let probes = start.elapsed().as_millis() / 25;
    assert!(hole.taken() as u128 <= 2 + probes, "{} connections, {probes} probes", hole.taken());
}

#[tokio::test]
async fn breaker_closes_when_redis_replies_again_and_rejected_checks_are_not_sent() {
    let server = Server::process(&[]).unwrap();
    let events = Events::default();
    let limiter = settings(server.url()).observer(events.clone()).build().unwrap();
    let gate = gate(&limiter);
    let paused = Paused::new(&server);
    open_breaker(&gate, &events).await;
    let before = calls(&server, "evalsha");
    for _ in 0..1_000 {
        assert!(gate.check("key").await.is_err());
    }
    drop(paused);
    soon("the breaker is closed", async || events.closed.load(Ordering::SeqCst) == 1).await;
    // Allows for the calls that opened the breaker, a heartbeat of the connection, and a few probes.
    assert!(calls(&server, "evalsha") <= before + 20);
    // On a busy machine, a check may exceed the limiter's deadline.
    let decision = gate.key("key").deadline(PATIENCE).check().await.unwrap();
    assert_eq!(decision.source(), Source::Redis);
    assert_eq!(events.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn error_replies_of_redis_do_not_open_the_breaker() {
    let server = Server::process(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).unwrap();
    let events = Events::default();
    let limiter = settings(server.url()).deadline(HOUR).observer(events.clone()).build().unwrap();
    let gate = gate(&limiter);
    for _ in 0..20 {
        assert!(gate.check("key").await.unwrap_err().to_string().contains("OOM"));
    }
    assert_eq!(events.opened.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn check_with_its_own_shorter_deadline_does_not_open_the_breaker() {
    let server = Server::process(&[]).unwrap();
    let events = Events::default();
    let limiter = settings(server.url()).deadline(HOUR).observer(events.clone()).build().unwrap();
    let gate = gate(&limiter);
    let paused = Paused::new(&server);
    for _ in 0..20 {
        // An open breaker would be another error.
        assert!(gate.key("key").deadline(DEADLINE / 4).check().await.unwrap_err().is_timeout());
    }
    assert_eq!(events.opened.load(Ordering::SeqCst), 0);
    drop(paused);
    // Takes a while: the limiter backs off before it replaces a connection that never got a reply. Checks made
    // meanwhile fail, and may open the breaker.
    soon("Redis decides again", async || gate.check("key").await.is_ok()).await;
}

#[tokio::test]
async fn disabled_breaker_never_opens() {
    let events = Events::default();
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = settings(&url).deadline(PATIENCE).breaker(false).observer(events.clone()).build().unwrap();
    for _ in 0..50 {
        let error = gate(&limiter).check("key").await.unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
    assert_eq!(events.opened.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn breaker_tasks_end_when_the_limiter_is_dropped_or_shut_down() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for is_shut_down in [false, true] {
        let events = Events::default();
        // With a manual clock, background jobs are tasks of this runtime.
        let settings = settings(&url).manual_clock(ManualClock::new()).on_failure(OnFailure::Local);
        let limiter = settings.observer(events.clone()).build().unwrap();
        for _ in 0..20 {
            let _ = gate(&limiter).check("key").await.unwrap();
        }
        assert_eq!(events.opened.load(Ordering::SeqCst), 1);
        assert!(tasks() > before);
        if is_shut_down {
            limiter.shutdown().await;
            soon("the tasks of the limiter have ended", async || tasks() == before).await;
        }
        drop(limiter);
        soon("the tasks of the limiter have ended", async || tasks() == before).await;
    }
}

/// Race: a current-thread runtime may end while its task waits for the reply to a probe.
#[test]
fn breaker_closes_although_the_runtime_of_its_probe_has_ended() {
    let mut server = Server::process(&[]).unwrap();
    let events = Events::default();
    let limiter = settings(server.url()).observer(events.clone()).build().unwrap();
    let gate = gate(&limiter);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let paused = server.cli(&["CLIENT", "PAUSE", "60000", "ALL"]).unwrap();
    assert_eq!(paused, "OK");
    runtime().block_on(open_breaker(&gate, &events));
    server.restart().unwrap();
    runtime().block_on(soon("the breaker is closed", async || gate.check("key").await.is_ok()));
}

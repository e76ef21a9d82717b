//! Partial grants without Redis, with the deny cache, and in batches; what the observer is notified of.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Event, Limiter, ManualClock, Observer, OnFailure, Quota, Rate, Source, Stub};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, Paused, builder, builder_as_is, calls, closed_port, quotas};
use crate::support::world::World;

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    /// Returns the notifications since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observer for Recorder {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Decided(decision) => {
                self.0.lock().unwrap().push(format!("{} {}", decision.gate(), decision.outcome()));
            }
            Event::Denied { gate, .. } => {
                self.0.lock().unwrap().push(format!("{gate} key"));
            }
            Event::Granted { gate, granted, denied } => {
                self.0.lock().unwrap().push(format!("{gate} granted {granted} denied {denied}"));
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn without_redis_a_process_grants_up_to_its_share() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let clock = ManualClock::new();
    let limiter = builder_as_is(&url).manual_clock(clock.clone()).instances(2).build().unwrap();
    for (name, quota) in quotas(10, HOUR) {
        let gate = limiter.gate(name, quota);
        let first = gate.take_up_to("x", 3).await.unwrap();
        assert_eq!((first.granted(), first.decision().source()), (3, Source::Local), "{name}");
        assert_eq!(first.decision().remaining(), 2, "{name}");
        let rest = gate.take_up_to("x", 20).await.unwrap();
        assert_eq!((rest.granted(), rest.decision().remaining()), (2, 0), "{name}");
        assert!(!rest.decision().retry_after().is_zero(), "{name}");
        assert_eq!(gate.take_up_to("x", 20).await.unwrap().granted(), 0, "{name}");
        clock.advance(rest.decision().retry_after());
        assert!(gate.take_up_to("x", 20).await.unwrap().granted() > 0, "{name}");
    }
    let all = quotas(10, HOUR).map(|(name, quota)| limiter.gate(name, quota));
    let grant = limiter.take_up_to(all.iter().map(|gate| gate.key("y")), 7).await.unwrap();
    assert_eq!((grant.granted(), grant.is_full()), (5, false));
}

#[tokio::test]
async fn failure_policy_grants_all_none_or_fails() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = builder_as_is(&url).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(10, HOUR));
    let other = limiter.gate("other", Quota::fixed_window(4, HOUR));
    let open = gate.clone().on_failure(OnFailure::Open);
    let grant = open.take_up_to("x", 7).await.unwrap();
    assert_eq!((grant.granted(), grant.decision().source()), (7, Source::Open));
    let both = |gate: &tidegate::Gate| [gate.key("y"), other.key("y")];
    assert_eq!(limiter.take_up_to(both(&open), 7).await.unwrap().granted(), 4, "the other one's share");
    let closed = gate.clone().on_failure(OnFailure::Closed);
    let grant = closed.take_up_to("x", 7).await.unwrap();
    assert_eq!((grant.granted(), grant.decision().is_allowed()), (0, false));
    assert_eq!(limiter.take_up_to(both(&closed), 7).await.unwrap().granted(), 0);
    let failing = gate.on_failure(OnFailure::Error);
    assert!(failing.take_up_to("x", 7).await.unwrap_err().is_unavailable());
    assert!(limiter.take_up_to(both(&failing), 7).await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn a_stub_grants_all_or_none() {
    for (stub, granted) in [(Stub::Allow, 9), (Stub::Deny, 0)] {
        let gate = Limiter::stub(stub).gate("gate", Quota::fixed_window(3, HOUR));
        assert_eq!(gate.take_up_to("x", 9).await.unwrap().granted(), granted);
    }
}

#[tokio::test]
async fn units_granted_without_redis_are_reconciled() {
    let server = Server::process(&[]).unwrap();
    let limiter =
        builder_as_is(server.url()).deadline(Duration::from_millis(100)).instances(1).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(10, HOUR));
    assert_eq!(gate.take_up_to("x", 2).await.unwrap().granted(), 2);
    let paused = Paused::new(&server);
    crate::support::fixture::soon("this process decides", async || {
        gate.take_up_to("x", 1).await.unwrap().decision().source() == Source::Local
    })
    .await;
    let granted = gate.take_up_to("x", 50).await.unwrap();
    assert_eq!(granted.decision().source(), Source::Local);
    drop(paused);
    crate::support::fixture::soon("Redis has all units", async || {
        let peek = gate.peek("x").await.unwrap();
        peek.source() == Source::Redis && peek.remaining() == 0
    })
    .await;
}

#[tokio::test]
async fn a_grant_that_is_not_full_is_cached_as_a_denial() {
    let world = World::redis();
    for (name, quota) in quotas(5, HOUR) {
        let gate = world.limiter.gate(name, quota);
        let part = gate.take_up_to("x", 8).await.unwrap();
        assert_eq!((part.granted(), part.decision().source()), (5, Source::Redis), "{name}");
        world.advance(Duration::from_millis(100));
        let none = gate.take_up_to("x", 8).await.unwrap();
        assert_eq!((none.granted(), none.decision().source()), (0, Source::DenyCache), "{name}");
        let wait = part.decision().retry_after() - Duration::from_millis(100);
        assert_eq!(none.decision().retry_after(), wait, "{name}");
        assert_eq!(gate.check("x").await.unwrap().source(), Source::DenyCache, "{name}");
        let full = gate.take_up_to("y", 5).await.unwrap();
        assert_eq!((full.granted(), full.is_full()), (5, true));
        assert_eq!(gate.check("y").await.unwrap().source(), Source::Redis, "{name}: it was full");
    }
}

#[tokio::test]
async fn a_cached_denial_of_a_larger_cost_does_not_outlast_a_grant() {
    let world = World::redis();
    let gate = world.limiter.gate("gate", Quota::token_bucket(10, Rate::per_second(10)));
    assert_eq!(gate.take_up_to("x", 6).await.unwrap().granted(), 6);
    let denied = gate.check_cost("x", 5).await.unwrap();
    assert_eq!(denied.retry_after(), Duration::from_millis(100));
    assert_eq!(gate.take_up_to("x", 2).await.unwrap().granted(), 2);
    let denied = gate.check_cost("x", 5).await.unwrap();
    assert_eq!(denied.retry_after(), Duration::from_millis(300));
}

#[tokio::test]
async fn a_grant_is_one_call_for_any_number_of_units() {
    let server = Server::process(&[]).unwrap();
    // Sends no calls in the background, which the server would count too.
    let builder = builder(server.url()).deny_cache(Duration::ZERO);
    let limiter = builder.instances(1).follow_overrides(false).publish_figures(false).build().unwrap();
    limiter.ready().await.unwrap();
    for (name, quota) in quotas(1_000_000, HOUR) {
        let gate = limiter.gate(name, quota);
        let _ = gate.take_up_to("x", 0).await.unwrap();
        let before = calls(&server, "evalsha");
        let grant = gate.take_up_to("x", u64::MAX).await.unwrap();
        assert_eq!(grant.granted(), 1_000_000, "{name}");
        assert_eq!(calls(&server, "evalsha"), before + 1, "{name}");
    }
    let log = limiter.gate("log", Quota::sliding_log(1_000_000, HOUR)).redis_key("x").unwrap();
    assert_eq!(server.cli(&["ZCARD", &log]).unwrap(), "(integer) 1", "one entry per grant");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_grants_and_checks_never_exceed_the_limit() {
    for limiter in [Limiter::in_memory(), builder(tidegate_testkit::shared().url()).build().unwrap()] {
        for (name, quota) in quotas(1_000, HOUR) {
            let gate = limiter.gate(name, quota);
            let takes = (0..60).map(|task| {
                let gate = gate.clone();
                tokio::spawn(async move {
                    let (mut granted, wanted) = (0, 1 + task % 7);
                    for _ in 0..10 {
                        granted += gate.take_up_to("x", wanted).await.unwrap().granted();
                        granted += u64::from(gate.check("x").await.unwrap().is_allowed());
                    }
                    granted
                })
            });
            let granted: u64 = join_all(takes).await.into_iter().map(Result::unwrap).sum();
            // A bucket refills one unit each 3.6 s.
            assert!((1_000..1_030).contains(&granted), "{name}: {granted}");
        }
    }
}

#[tokio::test]
async fn a_grant_is_notified_as_one_decision_and_its_units() {
    let (recorder, redis) = (Recorder::default(), tidegate_testkit::shared());
    let redis = builder(redis.url()).deny_cache(Duration::ZERO).observer(recorder.clone()).build().unwrap();
    let memory = Limiter::builder().in_memory().observer(recorder.clone()).build().unwrap();
    for limiter in [redis, memory] {
        let a = limiter.gate("a", Quota::fixed_window(5, HOUR));
        let b = limiter.gate("b", Quota::fixed_window(9, HOUR));
        let _ = a.take_up_to("x", 0).await.unwrap();
        assert_eq!(recorder.take(), Vec::<String>::new(), "a peek");
        let _ = a.key("x").cost(2).take_up_to(1).await.unwrap();
        assert_eq!(recorder.take(), ["a granted 2 denied 0", "a allowed"]);
        let _ = a.take_up_to("x", 4).await.unwrap();
        assert_eq!(recorder.take(), ["a granted 3 denied 1", "a allowed"]);
        let _ = a.take_up_to("x", u64::MAX).await.unwrap();
        assert_eq!(recorder.take(), ["a granted 0 denied 5", "a denied", "a key"]);
        let _ = a.clone().shadow(true).take_up_to("x", 2).await.unwrap();
        assert_eq!(recorder.take(), ["a granted 0 denied 2", "a shadow_denied", "a key"]);
        let _ = limiter.take_up_to([b.key("x"), a.clone().shadow(true).key("x")], 1).await.unwrap();
        assert!(recorder.take().contains(&"a granted 0 denied 1".to_owned()));
        let _ = limiter.take_up_to([a.key("y"), b.key("y")], 7).await.unwrap();
        let expected = ["a allowed", "b allowed", "a granted 5 denied 0", "b granted 5 denied 0"];
        assert_eq!(recorder.take(), expected, "at most 5 can ever be granted");
        let _ = limiter.take_up_to([a.key("y"), b.key("y")], 3).await.unwrap();
        let expected = ["a denied", "a key", "a granted 0 denied 3", "b granted 0 denied 0"];
        assert_eq!(recorder.take(), expected);
    }
}

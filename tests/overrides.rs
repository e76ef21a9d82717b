//! Overrides for the whole fleet: which instances observe them and when, their cost, and their behavior under
//! faults.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate::{
    Builder, Decision, Event, Gate, KeyMode, Lease, Limiter, Observer, Override, Quota, Source, Switch,
};
use tidegate_testkit::{Proxy, Server};

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{
    HOUR, Paused, builder, builder_as_is, calls, closed_port, limiter, namespace, soon,
};
use crate::support::world::passes;

const QUOTA: Quota = Quota::fixed_window(1, HOUR);

/// Two limiters of one namespace, as in two processes.
fn two(server: &Server, settings: impl Fn(Builder) -> Builder) -> [Limiter; 2] {
    let namespace = namespace();
    [(); 2].map(|()| settings(builder(server.url()).namespace(&namespace)).build().unwrap())
}

async fn is_switched(gate: &Gate) -> bool {
    gate.check("x").await.unwrap().source() == Source::Switch
}

#[tokio::test]
async fn every_instance_observes_an_override_and_its_end_within_a_second() {
    let server = tidegate_testkit::shared();
    let [operator, service] = two(&server, |builder| builder);
    let gates: Vec<Gate> = ["a", "b"].map(|name| service.gate(name, QUOTA)).into();
    assert!(!is_switched(&gates[0]).await);
    // A busy machine delays some of these rounds, so the test asserts the fastest of five.
    let mut waits = Vec::new();
    for _ in 0..5 {
        for (is_active, switch) in [(true, Some(Switch::Open)), (false, None)] {
            let control = operator.control();
            let start = Instant::now();
            match switch {
                Some(switch) => control.switch("a", switch, None).await.unwrap(),
                None => control.end_switch("a").await.unwrap(),
            }
            soon("the instance observes it", async || is_switched(&gates[0]).await == is_active).await;
            waits.push(start.elapsed());
        }
    }
    assert!(!is_switched(&gates[1]).await);
    assert!(*waits.iter().min().unwrap() < Duration::from_secs(1), "{waits:?}");
}

#[tokio::test]
async fn overrides_add_no_command_per_check() {
    let server = Server::process(&[]).unwrap();
    let limiter =
        builder(server.url()).follow_overrides(false).instances(1).publish_figures(false).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, HOUR));
    let _ = gate.check("x").await.unwrap();
    limiter.control().switch("gate", Switch::Open, None).await.unwrap();
    let sent = || calls(&server, "evalsha") + calls(&server, "eval");
    let before = sent();
    assert_eq!(passes(&gate, "x", 1_000).await, 1_000);
    assert_eq!(sent(), before, "an open gate sends nothing");
    limiter.control().end_switch("gate").await.unwrap();
    limiter.control().set_override("gate", "x", Quota::fixed_window(2_000, HOUR), HOUR).await.unwrap();
    let before = sent();
    assert_eq!(passes(&gate, "x", 100).await, 100);
    assert_eq!(sent(), before + 100, "one call per check, as without an override");
}

#[tokio::test]
async fn limiter_that_does_not_follow_overrides_reads_and_applies_none() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let namespace = namespace();
    let limiter = |url: &str, follows| {
        let builder =
            builder(url).namespace(&namespace).follow_overrides(follows).instances(1).publish_figures(false);
        builder.build().unwrap()
    };
    let (operator, follower) = (limiter(server.url(), false), limiter(server.url(), true));
    let gate = limiter(&proxy.url(), false).gate("gate", QUOTA);
    let _ = gate.peek("x").await.unwrap();
    let before = proxy.counts();
    operator.control().switch("gate", Switch::Closed, None).await.unwrap();
    let followed = follower.gate("gate", QUOTA);
    soon("another limiter follows it", async || is_switched(&followed).await).await;
    assert_eq!(proxy.counts(), before);
    assert!(gate.check("y").await.unwrap().is_allowed());
}

#[tokio::test]
async fn overrides_outlast_an_outage_and_a_process_started_during_it_has_none() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let limiter = builder_as_is(&proxy.url()).deadline(Duration::from_millis(50)).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    // Repeated, since a busy machine may exceed the short deadline.
    let control = limiter.control();
    soon("the gate is closed", async || {
        control.switch("gate", Switch::Closed, None).await.is_ok() && is_switched(&gate).await
    })
    .await;
    let paused = Paused::new(&server);
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let late = builder_as_is(&url).deadline(Duration::from_millis(50)).build().unwrap();
    assert!(late.gate("gate", QUOTA).check("x").await.unwrap().is_allowed());
    assert!(late.control().switch("gate", Switch::Closed, None).await.unwrap_err().is_unavailable());
    // The second command follows a read that timed out.
    for _ in 0..2 {
        let sent = proxy.counts().to_server;
        soon("the overrides are read", async || {
            assert!(is_switched(&gate).await);
            proxy.counts().to_server > sent
        })
        .await;
    }
    assert!(is_switched(&gate).await);
    drop(paused);
}

/// Records the source of each decision.
#[derive(Clone, Default)]
struct Sources(Arc<Mutex<Vec<Source>>>);

impl Observer for Sources {
    fn on(&self, event: &Event<'_>) {
        if let Event::Decided(decision) = event {
            self.0.lock().unwrap().push(decision.source());
        }
    }
}

#[tokio::test]
async fn shadow_gate_denies_nothing_while_redis_does_not_reply() {
    let (server, sources) = (Server::process(&[]).unwrap(), Sources::default());
    let limiter = builder(server.url()).deadline(Duration::from_millis(300)).observer(sources.clone());
    let limiter = limiter.follow_overrides(false).build().unwrap();
    let (gate, other) = (limiter.gate("gate", QUOTA), limiter.gate("other", QUOTA));
    // Repeated, since a busy machine may exceed the short deadline.
    let control = limiter.control();
    soon("the gate is a shadow", async || control.switch("gate", Switch::Shadow, None).await.is_ok()).await;
    let _paused = Paused::new(&server);
    let is_open = |decision: &Decision| decision.is_allowed() && decision.source() == Source::Open;
    assert!(is_open(&gate.check("x").await.unwrap()));
    assert!(is_open(&gate.check_many(["x"]).await[0].clone().unwrap()));
    let all = limiter.check_all([gate.key("x")]).await.unwrap();
    assert!(all.is_allowed() && is_open(all.binding()));
    assert_eq!(*sources.0.lock().unwrap(), [Source::Open; 3], "each decision is notified once");
    assert!(limiter.check_all([gate.key("x"), other.key("x")]).await.unwrap_err().is_unavailable());
    assert!(is_open(&gate.peek("x").await.unwrap()));
}

#[tokio::test]
async fn overrides_that_redis_lost_are_not_active() {
    let server = Server::process(&[]).unwrap();
    let limiter = limiter(&server);
    let gate = limiter.gate("gate", QUOTA);
    limiter.control().switch("gate", Switch::Closed, None).await.unwrap();
    assert!(is_switched(&gate).await);
    server.cli(&["FLUSHALL"]).unwrap();
    // The first check that needs Redis starts to follow the overrides.
    limiter.ready().await.unwrap();
    soon("the switch has ended", async || !is_switched(&gate).await).await;
}

#[tokio::test]
async fn unknown_entries_are_ignored_and_kept() {
    let server = tidegate_testkit::shared();
    let namespace = namespace();
    let build = || builder(server.url()).namespace(&namespace).build().unwrap();
    let (limiter, key) = (build(), format!("{namespace}:1:overrides"));
    let gate = limiter.gate("gate", QUOTA);
    limiter.control().switch("gate", Switch::Open, None).await.unwrap();
    server
        .cli(&["HSET", &key, "switch other", "ajar", "loan gate", "7", "override gate:y", "gcra 1 2"])
        .unwrap();
    assert_eq!(limiter.control().overrides().await.unwrap().len(), 1);
    assert_eq!(build().control().overrides().await.unwrap().len(), 1);
    assert!(is_switched(&gate).await);
    assert!(gate.check("y").await.unwrap().is_allowed());
    limiter.control().end_switch("gate").await.unwrap();
    assert_eq!(server.cli(&["HLEN", &key]).unwrap(), "(integer) 4", "the unknown entries stay");
    server.cli(&["DEL", &key]).unwrap();
    server.cli(&["SET", &key, "garbage"]).unwrap();
    let error = limiter.control().switch("gate", Switch::Open, None).await.unwrap_err();
    assert!(error.is_corrupt_state(), "{error}");
    assert!(gate.check("z").await.unwrap().is_allowed(), "checks are decided");
    assert_eq!(server.cli(&["GET", &key]).unwrap(), "\"garbage\"");
}

#[tokio::test]
async fn number_of_overrides_is_bounded_and_ended_ones_make_room() {
    let server = tidegate_testkit::shared();
    let namespace = namespace();
    let limiter = builder(server.url()).namespace(&namespace).build().unwrap();
    let (control, key) = (limiter.control(), format!("{namespace}:1:overrides"));
    let fill = "for i = 1, 4095 do redis.call('HSET', KEYS[1], 'override gate:' .. i, 'fixed_window 2 1000000 0 0' .. ARGV[1]) end";
    server.cli(&["EVAL", fill, "1", &key, " until 1"]).unwrap();
    control.switch("gate", Switch::Shadow, None).await.unwrap();
    assert_eq!(server.cli(&["HLEN", &key]).unwrap(), "(integer) 2", "ended overrides are removed");
    server.cli(&["EVAL", fill, "1", &key, ""]).unwrap();
    assert_eq!(control.overrides().await.unwrap().len(), 4_096);
    let error = control.switch("other", Switch::Open, None).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("4096 overrides"), "{error}");
    control.switch("gate", Switch::Open, None).await.unwrap();
    assert!(is_switched(&limiter.gate("gate", QUOTA)).await, "an existing override can be changed");
    control.end_override("gate", "77").await.unwrap();
    control.switch("other", Switch::Open, None).await.unwrap();
}

#[tokio::test]
async fn key_of_the_overrides_expires_after_the_last_of_them() {
    let server = tidegate_testkit::shared();
    let namespace = namespace();
    let limiter = builder(server.url()).namespace(&namespace).build().unwrap();
    let key = format!("{namespace}:1:overrides");
    let ttl_s = || {
        let ttl = server.cli(&["TTL", &key]).unwrap();
        ttl.trim_start_matches("(integer) ").parse::<u64>().unwrap()
    };
    limiter.control().switch("gate", Switch::Open, Some(2 * HOUR)).await.unwrap();
    assert!((7_190..=7_200).contains(&ttl_s()), "{}", ttl_s());
    limiter.control().set_override("gate", "x", QUOTA, HOUR).await.unwrap();
    assert!((7_190..=7_200).contains(&ttl_s()), "{}", ttl_s());
    limiter.control().end_switch("gate").await.unwrap();
    assert!((3_590..=3_600).contains(&ttl_s()), "{}", ttl_s());
    limiter.control().end_override("gate", "x").await.unwrap();
    assert!(
        (50..=60).contains(&ttl_s()),
        "the empty hash stays for the instances that must observe it: {}",
        ttl_s()
    );
    limiter.control().switch("gate", Switch::Open, None).await.unwrap();
    assert!(ttl_s() > 300_000_000, "{}", ttl_s());
}

#[tokio::test]
async fn override_applies_to_its_key_only_for_any_bytes_and_private_keys() {
    let server = tidegate_testkit::shared();
    let long = vec![b'k'; 500];
    let keys: [&[u8]; 7] = [b"", b" ", b"a:b", b"{x}%", b"\0\xff\n until 1", b"*", &long];
    for mode in [KeyMode::Clear, KeyMode::Hmac(vec![7; 32])] {
        let limiter = builder(server.url()).key_mode(mode.clone()).build().unwrap();
        let gate = limiter.gate("gate", QUOTA);
        for (limit, key) in (2..).zip(keys) {
            limiter
                .control()
                .set_override("gate", key, Quota::fixed_window(limit, HOUR), HOUR)
                .await
                .unwrap();
        }
        for (limit, key) in (2..).zip(keys) {
            assert_eq!(gate.peek(key).await.unwrap().limit(), limit, "{mode:?} {}", key.escape_ascii());
        }
        assert_eq!(gate.peek("b").await.unwrap().limit(), 1);
        assert_eq!(limiter.control().overrides().await.unwrap().len(), keys.len());
        if let KeyMode::Hmac(_) = mode {
            for listed in limiter.control().overrides().await.unwrap() {
                let Override::Quota { key, .. } = listed else { panic!("{listed:?}") };
                assert!(key.starts_with("%hmac="), "{key}");
            }
        }
    }
}

#[tokio::test]
async fn lease_is_not_spent_after_its_key_is_overridden() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(100_000, HOUR)).leased(Lease::new());
    soon("units are leased", async || {
        passes(&gate, "x", 100).await;
        gate.try_check("x").is_some_and(|decision| decision.source() == Source::Lease)
    })
    .await;
    limiter.control().set_override("gate", "x", QUOTA, HOUR).await.unwrap();
    assert!(gate.try_check("x").is_none_or(|decision| !decision.is_allowed()));
    let decision = gate.check("x").await.unwrap();
    assert_eq!((decision.is_allowed(), decision.limit(), decision.source()), (false, 1, Source::Redis));
    limiter.control().switch("gate", Switch::Closed, None).await.unwrap();
    let decision = gate.try_check("y").unwrap();
    assert_eq!((decision.is_allowed(), decision.source()), (false, Source::Switch));
}

#[tokio::test]
async fn raised_limit_applies_despite_a_cached_denial() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).deny_cache(HOUR).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    assert_eq!(passes(&gate, "x", 3).await, 1);
    limiter.control().set_override("gate", "x", Quota::fixed_window(2, HOUR), HOUR).await.unwrap();
    assert_eq!(passes(&gate, "x", 3).await, 1);
}

#[tokio::test]
async fn invalid_names_and_a_shut_down_limiter_are_errors() {
    let limiter = Limiter::in_memory();
    let control = limiter.control();
    for name in ["", "Gate", "a b", "a:b"] {
        assert!(control.switch(name, Switch::Open, None).await.unwrap_err().is_config(), "{name}");
        assert!(control.end_override(name, "x").await.unwrap_err().is_config(), "{name}");
    }
    assert!("ajar".parse::<Switch>().unwrap_err().to_string().contains("`open`, `closed` or `shadow`"));
    let gate = limiter.gate("gate", QUOTA);
    control.switch("gate", Switch::Open, None).await.unwrap();
    limiter.shutdown().await;
    assert!(gate.check("x").await.unwrap_err().is_shut_down());
    assert!(control.end_switch("gate").await.unwrap_err().is_shut_down());
}

#[tokio::test]
async fn override_of_another_kind_of_limit_is_ignored() {
    let server = tidegate_testkit::shared();
    let [operator, service] = two(&server, |builder| builder);
    let (rate, uploads) = (service.gate("rate", QUOTA), service.gate("uploads", Quota::in_flight(1)));
    let control = operator.control();
    control.set_override("rate", "x", Quota::in_flight(5), HOUR).await.unwrap();
    control.set_override("uploads", "x", Quota::fixed_window(5, HOUR), HOUR).await.unwrap();
    // Switched last, so a service that observes it has read the others.
    control.switch("last", Switch::Closed, None).await.unwrap();
    let last = service.gate("last", QUOTA);
    soon("the service has read the overrides", async || is_switched(&last).await).await;
    assert_eq!(rate.check("x").await.unwrap().limit(), 1);
    let held = uploads.try_acquire("x").await.unwrap().permit().unwrap();
    assert!(uploads.try_acquire("x").await.unwrap().permit().is_none());
    held.release().await.unwrap();
}

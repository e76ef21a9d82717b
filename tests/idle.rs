//! A process without checks does not read the overrides, and its next check is not decided by an old reading.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate::{Acquired, Gate, Lease, Limiter, OnFailure, Quota, Source, Switch};
use tidegate_testkit::{Fault, Proxy, Server};

use crate::support::fixture::{HOUR, Paused, builder, builder_as_is, calls, namespace, soon};

/// Longer than the ten seconds after which a process stops reading, and two pauses between readings.
const IDLE: Duration = Duration::from_secs(12);
const QUOTA: Quota = Quota::fixed_window(1_000, HOUR);
const IN_FLIGHT: Quota = Quota::in_flight(1_000);

/// Uses a gate, and returns whether a switch decided.
type Verb = for<'a> fn(&'a Limiter) -> std::pin::Pin<Box<dyn Future<Output = bool> + 'a>>;

fn gate(limiter: &Limiter) -> Gate {
    limiter.gate("gate", QUOTA)
}

fn is_switch(source: Source) -> bool {
    source == Source::Switch
}

/// The nine verbs.
const VERBS: [(&str, Verb); 9] = [
    ("check", |limiter| Box::pin(async { is_switch(gate(limiter).check("x").await.unwrap().source()) })),
    ("peek", |limiter| Box::pin(async { is_switch(gate(limiter).peek("x").await.unwrap().source()) })),
    ("check_many", |limiter| {
        Box::pin(async {
            let decided = gate(limiter).check_many(["x", "y"]).await;
            decided.into_iter().all(|decision| is_switch(decision.unwrap().source()))
        })
    }),
    ("check_each", |limiter| {
        Box::pin(async {
            let decided = limiter.check_each([gate(limiter).key("x")]).await;
            decided.into_iter().all(|decision| is_switch(decision.unwrap().source()))
        })
    }),
    ("check_all", |limiter| {
        Box::pin(async {
            let decided = limiter.check_all([gate(limiter).key("x"), gate(limiter).key("y")]).await.unwrap();
            is_switch(decided.binding().source())
        })
    }),
    ("take_up_to", |limiter| {
        Box::pin(async {
            let grant = gate(limiter).take_up_to("x", 5).await.unwrap();
            is_switch(grant.decision().source())
        })
    }),
    ("acquire", |limiter| {
        Box::pin(async {
            let acquired = limiter.gate("gate", IN_FLIGHT).try_acquire("x").await.unwrap();
            matches!(&acquired, Acquired::Denied(decision) if is_switch(decision.source()))
        })
    }),
    ("reserve", |limiter| {
        Box::pin(async {
            let reserved = gate(limiter).reserve("x", 2).await.unwrap();
            is_switch(reserved.decision().source())
        })
    }),
    ("until_allowed", |limiter| {
        Box::pin(async {
            let decision = gate(limiter).until_allowed("x", Duration::ZERO).await.unwrap();
            is_switch(decision.source())
        })
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_obeys_a_switch_that_was_set_while_the_process_was_idle() {
    let server = Server::process(&[]).unwrap();
    let namespace = namespace();
    let limiter = || {
        let builder = builder(server.url()).namespace(&namespace).instances(1).publish_figures(false);
        builder.build().unwrap()
    };
    let services = VERBS.map(|_| limiter());
    for (service, (name, verb)) in services.iter().zip(VERBS) {
        assert!(!verb(service).await, "{name}");
    }
    tokio::time::sleep(IDLE).await;
    // Only the reading of overrides calls it. The permits have heartbeats.
    let before = calls(&server, "hget");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(calls(&server, "hget"), before, "idle processes read nothing");
    limiter().control().switch("gate", Switch::Closed, None).await.unwrap();
    let obeyed = services.iter().zip(VERBS).map(async |(service, (name, verb))| (name, verb(service).await));
    let missed: Vec<_> = join_all(obeyed).await.into_iter().filter(|(_, obeys)| !obeys).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_reaches_the_state_of_an_override_that_was_set_while_the_process_was_idle() {
    let server = Server::process(&[]).unwrap();
    let namespace = namespace();
    let [operator, service] = [(); 2].map(|()| builder(server.url()).namespace(&namespace).build().unwrap());
    let gate = gate(&service);
    assert!(gate.check("x").await.unwrap().is_allowed());
    tokio::time::sleep(IDLE).await;
    let other = Quota::sliding_log(9, HOUR);
    operator.control().set_override("gate", "x", other, HOUR).await.unwrap();
    gate.penalize("x", 4).await.unwrap();
    assert_eq!(gate.peek("x").await.unwrap().remaining(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_checks_after_an_idle_time_share_a_reading_that_no_dropped_future_cancels() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let namespace = namespace();
    let operator =
        builder(server.url()).namespace(&namespace).instances(1).publish_figures(false).build().unwrap();
    let service =
        builder(&proxy.url()).namespace(&namespace).instances(1).publish_figures(false).build().unwrap();
    let gate = gate(&service);
    assert!(gate.check("x").await.unwrap().is_allowed());
    tokio::time::sleep(IDLE).await;
    operator.control().switch("gate", Switch::Closed, None).await.unwrap();
    // The first check is dropped while its reading is under way.
    proxy.set(Fault::Slow(Duration::from_millis(200)));
    assert!(tokio::time::timeout(Duration::from_millis(50), gate.check("x")).await.is_err());
    let before = calls(&server, "evalsha");
    let decided = join_all((0..300).map(|_| gate.check("x"))).await;
    assert!(decided.into_iter().all(|decision| is_switch(decision.unwrap().source())));
    let sent = calls(&server, "evalsha") - before;
    assert!(sent <= 2, "{sent} calls for 300 checks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_after_an_idle_time_ends_within_its_deadline_by_the_failure_policy_without_redis() {
    const DEADLINE: Duration = Duration::from_millis(300);
    let server = Server::process(&[]).unwrap();
    let builder = builder_as_is(server.url()).deadline(DEADLINE).on_failure(OnFailure::Closed);
    let service = builder.instances(1).publish_figures(false).build().unwrap();
    let gate = gate(&service);
    assert!(gate.key("x").deadline(HOUR).check().await.unwrap().is_allowed());
    tokio::time::sleep(IDLE).await;
    let paused = Paused::new(&server);
    let start = Instant::now();
    let decided = join_all((0..20).map(|_| gate.check("x"))).await;
    assert!(decided.into_iter().all(|decision| decision.unwrap().source() == Source::Closed));
    assert!(start.elapsed() < 2 * DEADLINE, "{:?}", start.elapsed());
    drop(paused);
    soon("Redis decides again", async || gate.check("x").await.unwrap().source() == Source::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_for_a_permit_keep_the_process_reading() {
    let server = Server::process(&[]).unwrap();
    let namespace = namespace();
    let [operator, service] = [(); 2].map(|()| builder(server.url()).namespace(&namespace).build().unwrap());
    let gate = service.gate("gate", Quota::in_flight(1));
    let Acquired::Admitted(_held, _) = gate.try_acquire("x").await.unwrap() else { panic!("denied") };
    let waiting = {
        let gate = gate.clone();
        tokio::spawn(async move { gate.acquire_timeout("x", HOUR).await.unwrap() })
    };
    tokio::time::sleep(IDLE).await;
    operator.control().switch("gate", Switch::Open, None).await.unwrap();
    let admitted =
        tokio::time::timeout(Duration::from_secs(2), waiting).await.expect("the switch is not seen");
    assert!(matches!(admitted.unwrap(), Acquired::Admitted(_, decision) if is_switch(decision.source())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_that_cannot_wait_decides_nothing_by_an_old_reading() {
    let server = Server::process(&[]).unwrap();
    let namespace = namespace();
    let [operator, service] = [(); 2].map(|()| builder(server.url()).namespace(&namespace).build().unwrap());
    let gate = service.gate("gate", QUOTA).leased(Lease::new().max_units(100).hold(HOUR));
    soon("a lease decides", async || {
        let _ = gate.check("x").await.unwrap();
        gate.try_check("x").is_some()
    })
    .await;
    tokio::time::sleep(IDLE).await;
    operator.control().switch("gate", Switch::Closed, None).await.unwrap();
    assert!(gate.try_check("x").is_none());
    soon("the switch is read without a check that waits", async || {
        gate.try_check("x").is_some_and(|decision| is_switch(decision.source()))
    })
    .await;
}

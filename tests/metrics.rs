//! The metrics match the decisions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tidegate::metrics::{Metrics, names};
use tidegate::regions::Mode;
use tidegate::{Ban, Event, Lease, Limiter, Observer, OnFailure, Quota, Switch};
use tidegate_testkit::Server;

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{HOUR, builder, builder_as_is, closed_port, namespace, soon};

/// Creates metrics with their own recorder, and a handle that renders them.
fn metrics() -> (Arc<Metrics>, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().set_buckets(&names::SECONDS).unwrap().build_recorder();
    let handle = recorder.handle();
    (Arc::new(Metrics::with_recorder(recorder)), handle)
}

/// Returns the values of all series that are not 0, by name and labels.
fn nonzero_series(handle: &PrometheusHandle) -> BTreeMap<String, f64> {
    let text = handle.render();
    let series = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let series = series.map(|(series, value)| (series.to_owned(), value.parse().unwrap()));
    series.filter(|(_, value)| *value != 0.0).collect()
}

fn value(handle: &PrometheusHandle, series: &str) -> f64 {
    nonzero_series(handle).get(series).copied().unwrap_or_default()
}

#[tokio::test]
async fn each_decision_is_counted_by_gate_outcome_and_source() {
    let (metrics, handle) = metrics();
    let server = tidegate_testkit::shared();
    // On a busy machine, the default deny cache may forget a denial too early.
    let limiter = builder(server.url()).deny_cache(HOUR).observer(metrics).build().unwrap();
    let (api, other) = (
        limiter.gate("api", Quota::fixed_window(10, HOUR)),
        limiter.gate("other", Quota::fixed_window(1, HOUR)),
    );
    for _ in 0..12 {
        let _ = api.check("x").await.unwrap();
    }
    let _ = limiter.check_all([api.key("y"), other.key("y")]).await.unwrap();
    let _ = api.peek("x").await.unwrap();
    let count = |series: &str| value(&handle, &format!("tidegate_decisions_total{{{series}}}"));
    assert_eq!(count(r#"gate="api",outcome="allowed",source="redis""#), 11.0);
    assert_eq!(count(r#"gate="api",outcome="denied",source="redis""#), 1.0);
    assert_eq!(count(r#"gate="api",outcome="denied",source="deny_cache""#), 1.0);
    assert_eq!(count(r#"gate="other",outcome="allowed",source="redis""#), 1.0);
    // Near the limit are the ninth check of gate `api`, which left 1 of 10 units, and the tenth, which left
    // 0. At gate `other`, the only unit was charged.
    assert_eq!(value(&handle, r#"tidegate_near_limit_total{gate="api"}"#), 2.0);
    assert_eq!(value(&handle, r#"tidegate_near_limit_total{gate="other"}"#), 1.0);
    // The peek is a call, too.
    assert_eq!(value(&handle, "tidegate_call_seconds_count"), 13.0);
    assert_eq!(value(&handle, "tidegate_call_groups_total"), 13.0);
}

#[tokio::test]
async fn label_of_a_gate_is_its_readable_name_unless_stored_names_are_set() {
    for (is_stored, label) in [(false, "api / user"), (true, "api.user")] {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let metrics = Metrics::with_recorder(recorder);
        let metrics = if is_stored { metrics.with_stored_gate_names() } else { metrics };
        let limiter = Limiter::builder().in_memory().observer(metrics).build().unwrap();
        limiter.notify(&Event::GateNamed { gate: "api.user", readable: "api / user" });
        for gate in ["api.user", "in_code"] {
            assert!(limiter.gate(gate, Quota::fixed_window(1, HOUR)).check("x").await.unwrap().is_allowed());
        }
        for label in [label, "in_code"] {
            let series =
                format!("tidegate_decisions_total{{gate=\"{label}\",outcome=\"allowed\",source=\"memory\"}}");
            assert_eq!(value(&handle, &series), 1.0, "{series}");
        }
    }
}

#[tokio::test]
async fn bans_are_counted_by_gate() {
    let (metrics, handle) = metrics();
    let limiter = Limiter::builder().in_memory().observer(metrics).build().unwrap();
    let ban = Ban::after(2, HOUR);
    let login = limiter.gate("login", Quota::fixed_window(1, HOUR)).ban(ban);
    for key in ["x", "y", "z"] {
        for _ in 0..9 {
            let _ = login.check(key).await.unwrap();
        }
    }
    assert_eq!(value(&handle, r#"tidegate_bans_total{gate="login"}"#), 3.0);
}

#[tokio::test]
async fn units_of_partial_grants_are_counted_by_gate_and_outcome() {
    let (metrics, handle) = metrics();
    let limiter = Limiter::builder().in_memory().observer(metrics).build().unwrap();
    let mail = limiter.gate("mail", Quota::fixed_window(10, HOUR));
    for wanted in [6, 6, 6] {
        let _ = mail.take_up_to("x", wanted).await.unwrap();
    }
    let units = |outcome: &str| {
        value(&handle, &format!("tidegate_grant_units_total{{gate=\"mail\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!((units("allowed"), units("denied")), (10.0, 8.0));
    let decisions = |outcome: &str| {
        value(
            &handle,
            &format!("tidegate_decisions_total{{gate=\"mail\",outcome=\"{outcome}\",source=\"memory\"}}"),
        )
    };
    assert_eq!((decisions("allowed"), decisions("denied")), (2.0, 1.0));
}

#[tokio::test]
async fn failures_are_counted_by_kind_of_error_and_by_the_source_that_decided_instead() {
    let (metrics, handle) = metrics();
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = builder_as_is(&url).on_failure(OnFailure::Closed).observer(metrics).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(10, HOUR));
    assert_eq!(value(&handle, "tidegate_breaker_open"), 0.0);
    for _ in 0..9 {
        let _ = gate.check("x").await.unwrap();
    }
    let series = nonzero_series(&handle);
    assert_eq!(series[r#"tidegate_errors_total{kind="unavailable"}"#], 5.0, "{series:?}");
    assert_eq!(series[r#"tidegate_errors_total{kind="breaker_open"}"#], 4.0, "{series:?}");
    assert_eq!(series[r#"tidegate_decisions_total{gate="gate",outcome="denied",source="closed"}"#], 9.0);
    assert_eq!((series["tidegate_breaker_open"], series["tidegate_breaker_opened_total"]), (1.0, 1.0));
}

#[tokio::test]
async fn one_in_eight_waits_is_sampled() {
    let (metrics, handle) = metrics();
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).observer(metrics).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1, HOUR));
    for _ in 0..400 {
        let _ = gate.peek("y").await.unwrap();
    }
    let sampled = value(&handle, "tidegate_wait_seconds_count");
    assert!((15.0..=95.0).contains(&sampled), "{sampled} of 400 waits were sampled");
}

#[tokio::test]
async fn every_leased_unit_is_counted_as_spent_returned_stranded_or_held() {
    let (metrics, handle) = metrics();
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).observer(metrics).build().unwrap();
    let gate = limiter.gate("leased", Quota::token_bucket(100_000, tidegate::Rate::per_second(1)));
    let gate = gate.leased(Lease::new().max_units(1_000).hold(Duration::from_millis(50)));
    let units =
        |fate: &str| value(&handle, &format!(r#"tidegate_lease_units_total{{gate="leased",fate="{fate}"}}"#));
    let held = || value(&handle, r#"tidegate_lease_units_held{gate="leased"}"#);
    soon("units are spent from a lease", async || {
        let _ = gate.check_cost("hot", 3).await.unwrap();
        units("spent") >= 30.0
    })
    .await;
    // Repeated, since units are leased and returned while the test reads the numbers. Two equal readings in
    // succession show that none were meanwhile.
    let read = || (held(), ["taken", "spent", "returned", "stranded"].map(units));
    soon("the units held are those neither spent nor returned", async || {
        let _ = gate.check_cost("hot", 3).await.unwrap();
        let (held, [taken, spent, returned, stranded]) = read();
        held > 0.0
            && held == taken - spent - returned - stranded
            && read() == (held, [taken, spent, returned, stranded])
    })
    .await;
    let stats = || gate.lease_stats();
    gate.reset("hot").await.unwrap();
    limiter.shutdown().await;
    soon("all units are accounted for", async || held() == 0.0).await;
    let shown = ["taken", "spent", "returned", "stranded"].map(units);
    let stats = stats();
    let counted = [stats.taken, stats.spent, stats.returned, stats.stranded].map(|units| units as f64);
    assert_eq!(shown, counted);
}

#[tokio::test]
async fn gates_beyond_the_bound_are_counted_together() {
    let (metrics, handle) = metrics();
    let limiter = Limiter::builder().in_memory().observer(metrics).build().unwrap();
    const GATES: u64 = 20_000;
    for number in 0..GATES {
        let _ =
            limiter.gate(&format!("gate-{number}"), Quota::fixed_window(1, HOUR)).check("x").await.unwrap();
    }
    let series = nonzero_series(&handle);
    let gates = series.keys().filter(|name| name.starts_with("tidegate_decisions_total"));
    let gates = gates.collect::<Vec<_>>();
    assert!((10_000..=16_385).contains(&gates.len()), "{}", gates.len());
    assert_eq!(gates.iter().map(|gate| series[*gate]).sum::<f64>(), GATES as f64);
    assert!(series[r#"tidegate_decisions_total{gate="other",outcome="allowed",source="memory"}"#] > 1.0);
}

#[tokio::test]
async fn number_of_instances_is_reported() {
    let server = tidegate_testkit::shared();
    let (metrics, handle) = metrics();
    let namespace = crate::support::fixture::namespace();
    let limiters = [0, 1].map(|_| {
        let limiter = builder(server.url()).namespace(&namespace).observer(metrics.clone()).build().unwrap();
        limiter.gate("gate", Quota::fixed_window(10, HOUR))
    });
    soon("each has counted the other", async || {
        for gate in &limiters {
            let _ = gate.check("x").await.unwrap();
        }
        value(&handle, "tidegate_instances") == 2.0
    })
    .await;
}

#[test]
fn pair_of_observers_notifies_both() {
    let [(first, first_handle), (second, second_handle)] = [metrics(), metrics()];
    let pair = (first, second);
    pair.on(&Event::BreakerOpened);
    pair.on(&Event::InstancesCounted(3));
    for handle in [first_handle, second_handle] {
        assert_eq!(
            (value(&handle, "tidegate_breaker_open"), value(&handle, "tidegate_instances")),
            (1.0, 3.0)
        );
    }
}

#[tokio::test]
async fn active_overrides_are_counted_until_they_end() {
    let (metrics, handle) = metrics();
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).observer(metrics).build().unwrap();
    let control = limiter.control();
    let counts = || {
        let count = |kind: &str| value(&handle, &format!("tidegate_overrides{{kind=\"{kind}\"}}"));
        (count("switch"), count("override"))
    };
    assert!(
        handle.render().contains("tidegate_overrides{kind=\"switch\"} 0"),
        "the series exists from the start"
    );
    control.switch("a", Switch::Open, None).await.unwrap();
    control.switch("b", Switch::Shadow, None).await.unwrap();
    let quota = Quota::fixed_window(1, HOUR);
    // Longer than a busy machine needs until the next line.
    control.set_override("a", "x", quota, Duration::from_secs(3)).await.unwrap();
    assert_eq!(counts(), (2.0, 1.0));
    control.end_switch("a").await.unwrap();
    // The first call to Redis starts to follow the overrides.
    limiter.ready().await.unwrap();
    soon("the override has ended", async || counts() == (1.0, 0.0)).await;
}

#[tokio::test]
async fn permits_are_counted_while_they_are_held_and_awaited() {
    let (metrics, handle) = metrics();
    let limiter = Limiter::builder().in_memory().observer(metrics).build().unwrap();
    let gate = limiter.gate("uploads", Quota::in_flight(3));
    let gauge = |name: &str| value(&handle, &format!(r#"tidegate_permits_{name}{{gate="uploads"}}"#));
    let first = gate.key("x").cost(2).acquire().await.unwrap().permit().unwrap();
    assert_eq!((gauge("held"), gauge("waiting")), (2.0, 0.0));
    let second = tokio::spawn(gate.key("x").cost(3).acquire().max_wait(HOUR).into_future());
    soon("the other acquire waits", async || gauge("waiting") == 1.0).await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap().permit().unwrap();
    assert_eq!((gauge("held"), gauge("waiting")), (3.0, 0.0));
    drop(second);
    assert_eq!(gauge("held"), 0.0);
}

#[tokio::test]
async fn lapsed_and_restored_permits_are_counted() {
    let (metrics, handle) = metrics();
    let (server, namespace) = (tidegate_testkit::shared(), crate::support::fixture::namespace());
    let builder = builder(server.url()).namespace(&namespace).permit_ttl(Duration::from_secs(1));
    let limiter = builder.observer(metrics).build().unwrap();
    let gate = limiter.gate("uploads", Quota::in_flight(3));
    let held = gate.key("x").cost(2).acquire().await.unwrap().permit().unwrap();
    let count = |name: &str| value(&handle, &format!(r#"tidegate_permits_{name}_total{{gate="uploads"}}"#));
    assert_eq!((count("lapsed"), count("restored")), (0.0, 0.0));
    // As after a loss of state: the next heartbeat is refused.
    let keys = [format!("{namespace}:1:holders"), gate.redis_key("x").unwrap()];
    assert_eq!(server.cli(&["DEL", &keys[0], &keys[1]]).unwrap(), "(integer) 2");
    soon("the permit has lapsed and is restored", async || {
        count("lapsed") == 2.0 && count("restored") == 2.0
    })
    .await;
    // The units of the removed lease count until it would have ended.
    soon("its units are counted once", async || gate.peek("x").await.unwrap().remaining() == 1).await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn settlements_are_counted_by_gate_and_result() {
    let (metrics, handle) = metrics();
    let limiter = Limiter::builder().in_memory().observer(metrics).build().unwrap();
    let (tokens, money) = (
        limiter.gate("tokens", Quota::fixed_window(10, HOUR)),
        limiter.gate("money", Quota::fixed_window(10, HOUR)),
    );
    let reserved = limiter.reserve([tokens.key("x").cost(3), money.key("x").cost(2)]).await.unwrap();
    for _ in 0..3 {
        limiter.commit(reserved.token().unwrap(), [1, 1]).await.unwrap();
    }
    for gate in ["tokens", "money"] {
        let count = |result: &str| {
            value(&handle, &format!(r#"tidegate_settlements_total{{gate="{gate}",result="{result}"}}"#))
        };
        assert_eq!(["settled", "late", "nothing", "queued"].map(count), [1.0, 0.0, 2.0, 0.0], "{gate}");
    }
}

#[tokio::test]
async fn replication_is_shown_by_peer_and_only_with_peers() {
    let (metrics, handle) = metrics();
    let mut servers = [Server::process(&[]).unwrap(), Server::process(&[]).unwrap()];
    let (namespace, quota) = (namespace(), Quota::fixed_window(10, HOUR).aligned_to_clock());
    let region = |name: &str, own: usize, peer: &str| {
        let builder = builder(servers[own].url()).namespace(&namespace).region(name);
        builder.peer(peer, servers[1 - own].url())
    };
    let alone = builder(servers[0].url()).observer(metrics.clone()).build().unwrap();
    let _ = alone.gate("search", quota).check("x").await.unwrap();
    assert!(!handle.render().contains("tidegate_replication_"), "{}", handle.render());

    let _eu = region("eu", 0, "us").observer(metrics).build().unwrap();
    let us = region("us", 1, "eu").build().unwrap().gate("search", quota).replicated(Mode::gossip());
    let shows = |series: &str| handle.render().lines().any(|line| line == series);
    soon("the peer is heard of", async || shows(r#"tidegate_replication_cut_off{peer="us"} 0"#)).await;
    for key in ["x", "y", "z"] {
        assert!(us.check(key).await.unwrap().is_allowed());
    }
    soon("the changes have arrived", async || {
        shows(r#"tidegate_replication_changes_total{peer="us",fate="applied"} 3"#)
    })
    .await;
    assert!(value(&handle, r#"tidegate_replication_heard_seconds{peer="us"}"#) < 2.0);
    for series in [
        r#"lag_seconds{peer="us"}"#,
        "outbox_keys",
        r#"changes_total{peer="us",fate="failed"}"#,
        r#"changes_total{peer="us",fate="skipped"}"#,
        r#"fenced_total{peer="us"}"#,
        r#"gap_total{peer="us"}"#,
        r#"rewound_total{peer="us"}"#,
    ] {
        assert!(shows(&format!("tidegate_replication_{series} 0")), "{series}: {}", handle.render());
    }
    servers[1].kill();
    soon("the peer is cut off", async || shows(r#"tidegate_replication_cut_off{peer="us"} 1"#)).await;
}

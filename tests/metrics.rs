//! The metrics match the decisions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tidegate::metrics::{Metrics, names};
use tidegate::{Lease, Limiter, Observer, OnFailure, Quota, Switch};

use crate::support::fixture::{HOUR, builder, builder_as_is, closed_port, soon};

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
    pair.breaker(true);
    pair.counted(3);
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

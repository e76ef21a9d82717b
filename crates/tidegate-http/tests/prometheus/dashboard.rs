//! Tests the dashboard with scrapes of the example under load: Prometheus has the counts of the load
//! generator, and each panel of a limiter shows data.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::http::process::Example;
use crate::support::prometheus::{DASHBOARD, OF_SERVICE, Scraping, dashboard_queries, now, panels, soon};

#[test]
fn grafana_can_read_the_dashboard() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    assert!(!dashboard["uid"].as_str().unwrap().is_empty() && dashboard.get("id").is_none());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "job", "gate"]);
    assert_eq!((&variables[0]["type"], &variables[0]["query"]), (&"datasource".into(), &"prometheus".into()));
    let (mut ids, mut areas) = (Vec::new(), Vec::new());
    for panel in panels() {
        ids.push(panel["id"].as_u64().unwrap());
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24 && w > 0 && h > 0, "{}", panel["title"]);
        areas.push([x, y, x + w, y + h]);
        if panel["type"] == "row" {
            continue;
        }
        assert!(["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()));
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{}", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
            assert!(target["refId"].is_string() && target["legendFormat"].is_string());
        }
    }
    for (at, a) in areas.iter().enumerate() {
        let overlaps = |b: &[u64; 4]| a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
        assert!(!areas[at + 1..].iter().any(overlaps), "panels overlap");
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), areas.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_has_the_counts_of_the_load_and_each_dashboard_query_on_limiters_returns_data() {
    let server = tidegate_testkit::shared();
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prometheus.yaml");
    let load = [("RULES", rules), ("RATE", "1000")];
    let since = now();
    let example = Example::start_with("prometheus", server.url(), &load);
    let scraping = Scraping::of(&[example.address.to_string()], None);
    for (panel, query) in dashboard_queries().iter().filter(|(_, query)| !query.contains(OF_SERVICE)) {
        soon(&format!("{panel}: {query}"), async || scraping.has_data(query, since).await).await;
    }

    let stop = reqwest::Client::new().post(format!("http://{}/stop", example.address));
    let counted: Value = serde_json::from_str(&stop.send().await.unwrap().text().await.unwrap()).unwrap();
    let labels = |series: &Value| {
        ["gate", "outcome", "source"].map(|label| series[label].as_str().unwrap().to_owned())
    };
    let counted = counted.as_array().unwrap().iter();
    // The example counts by names in Redis; metrics have the readable names of rules.
    let readable = |[gate, outcome, source]: [String; 3]| [gate.replace('.', " / "), outcome, source];
    let counted: BTreeMap<_, _> =
        counted.map(|series| (readable(labels(series)), series["count"].as_f64().unwrap())).collect();
    let checks: f64 = counted.values().sum();
    assert!(checks > 1_000.0, "{counted:?}");
    let mut shown = BTreeMap::new();
    soon("the latest counts are scraped", async || {
        let series = scraping.query("tidegate_decisions_total").await;
        shown = series.iter().map(|(series, count)| (labels(series), *count)).collect();
        shown.values().sum::<f64>() >= checks
    })
    .await;
    assert_eq!(shown, counted);
    let gates = shown.keys().map(|[gate, ..]| &**gate).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(
        gates.into_iter().collect::<Vec<_>>(),
        [
            "jobs",
            "provider",
            "shop / api",
            "shop / export",
            "shop / login",
            "shop / search",
            "shop / upload",
            "tokens"
        ]
    );
}

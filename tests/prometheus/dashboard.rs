//! The example under its load, scraped: the numbers are those that the load counted, and the
//! dashboard shows them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::server::{Scraping, now, soon};
use crate::http::process::Example;

const DASHBOARD: &str = include_str!("../../docs/dashboard.json");

fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// Its title and the query, as Grafana would send it.
fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for panel in panels() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "2s");
            let query = query.replace("$job", ".+").replace("$gate", ".+");
            assert!(!query.contains('$'), "{query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}

#[test]
fn the_dashboard_is_one_that_grafana_can_read() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    assert!(!dashboard["uid"].as_str().unwrap().is_empty() && dashboard.get("id").is_none());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "job", "gate"]);
    assert_eq!((&variables[0]["type"], &variables[0]["query"]), (&"datasource".into(), &"prometheus".into()));
    let (mut ids, mut places) = (Vec::new(), Vec::new());
    for panel in panels() {
        ids.push(panel["id"].as_u64().unwrap());
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24 && w > 0 && h > 0, "{}", panel["title"]);
        places.push([x, y, x + w, y + h]);
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
    for (at, a) in places.iter().enumerate() {
        let meets = |b: &[u64; 4]| a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
        assert!(!places[at + 1..].iter().any(meets), "panels lie on each other");
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), places.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_shows_what_the_load_counted_and_each_query_of_the_dashboard_returns_data() {
    let server = harness::shared();
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prometheus.yaml");
    let load = [("RULES", rules), ("RATE", "1000")];
    let since = now();
    let example = Example::start_with("prometheus", server.url(), &load);
    let scraping = Scraping::of(&[example.address.to_string()], None);
    for (panel, query) in queries() {
        soon(&format!("{panel}: {query}"), async || scraping.has_data(&query, since).await).await;
    }

    let stop = reqwest::Client::new().post(format!("http://{}/stop", example.address));
    let counted: Value = serde_json::from_str(&stop.send().await.unwrap().text().await.unwrap()).unwrap();
    let labels = |series: &Value| {
        ["gate", "outcome", "source"].map(|label| series[label].as_str().unwrap().to_owned())
    };
    let counted = counted.as_array().unwrap().iter();
    let counted: BTreeMap<_, _> = counted.map(|it| (labels(it), it["count"].as_f64().unwrap())).collect();
    let asked: f64 = counted.values().sum();
    assert!(asked > 1_000.0, "{counted:?}");
    let mut shown = BTreeMap::new();
    soon("what was counted last is scraped", async || {
        let series = scraping.query("tidegate_decisions_total").await;
        shown = series.iter().map(|(series, count)| (labels(series), *count)).collect();
        shown.values().sum::<f64>() >= asked
    })
    .await;
    assert_eq!(shown, counted);
    let gates = shown.keys().map(|[gate, ..]| &**gate).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(
        gates.into_iter().collect::<Vec<_>>(),
        ["shop.api", "shop.export", "shop.login", "shop.search"]
    );
}

//! A Prometheus process and its queries, and the alerts and the dashboard that it is given.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tidegate_testkit::Prometheus;

pub const ALERTS: &str = include_str!("../../../docs/operate/alerts.yml");
pub const DASHBOARD: &str = include_str!("../../../docs/operate/dashboard.json");
/// Panels and alerts of the service query metrics whose names begin so. Tests of tidegate-server cover them, and tests of
/// tidegate-http the others.
pub const OF_SERVICE: &str = "tidegate_server_";

/// Long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A file with the alerts, whose ranges are seconds and which do not wait. Dropping this value removes it.
pub struct QuickAlerts(PathBuf);

impl QuickAlerts {
    pub fn write() -> Self {
        let quick: Vec<_> = ALERTS.lines().filter(|line| !line.trim_start().starts_with("for: ")).collect();
        let quick = quick.join("\n").replace("[5m]", "[3s]").replace("[10m]", "[3s]");
        // Tests that run at the same time need separate files.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let file = std::env::temp_dir().join(format!("tidegate-alerts-{process}-{number}.yml"));
        std::fs::write(&file, quick).unwrap();
        Self(file)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for QuickAlerts {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the panels of the dashboard.
pub fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// Returns each panel's title and its queries as Grafana sends them.
pub fn dashboard_queries() -> Vec<(String, String)> {
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

pub struct Scraping {
    prometheus: Prometheus,
    http: reqwest::Client,
}

impl Scraping {
    /// Starts a Prometheus that scrapes these targets five times a second, with an optional file of alerts.
    pub fn of(targets: &[String], rule_file: Option<&Path>) -> Self {
        let targets: Vec<_> = targets.iter().map(|target| format!("'{target}'")).collect();
        let config = format!(
            "global: {{ scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }}\n\
             rule_files: [{}]\n\
             scrape_configs: [{{ job_name: tidegate, static_configs: [{{ targets: [{}] }}] }}]\n",
            rule_file.map(|file| format!("'{}'", file.display())).unwrap_or_default(),
            targets.join(", "),
        );
        Self { prometheus: Prometheus::start(&config).unwrap(), http: reqwest::Client::new() }
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let mut url = reqwest::Url::parse(&self.prometheus.url()).unwrap().join(path).unwrap();
        url.query_pairs_mut().extend_pairs(query);
        let text = self.http.get(url).send().await.unwrap().text().await.unwrap();
        let reply: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}"));
        assert_eq!(reply["status"], "success", "{query:?}: {text}");
        reply["data"].clone()
    }

    /// Returns the current series, each with its labels and its value.
    pub async fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let found = self.get("/api/v1/query", &[("query", query)]).await;
        let series = found["result"].as_array().unwrap().iter();
        series.map(|series| (series["metric"].clone(), number(&series["value"][1]))).collect()
    }

    /// Returns whether the query has returned a finite number since `since`.
    pub async fn has_data(&self, query: &str, since: SystemTime) -> bool {
        let [start, end] =
            [since, now()].map(|at| at.duration_since(UNIX_EPOCH).unwrap().as_secs_f64().to_string());
        let range = [("query", query), ("start", &*start), ("end", &*end), ("step", "0.5")];
        let found = self.get("/api/v1/query_range", &range).await;
        let series = found["result"].as_array().unwrap();
        series
            .iter()
            .flat_map(|series| series["values"].as_array().unwrap())
            .any(|sample| number(&sample[1]).is_finite())
    }

    /// Returns the names of the alerts of a group in its rule files.
    pub async fn alerts(&self, group: &str) -> Vec<String> {
        let groups = self.get("/api/v1/rules", &[("type", "alert")]).await;
        let mut groups = groups["groups"].as_array().unwrap().iter();
        let group = groups.find(|found| found["name"] == group).unwrap();
        let rules = group["rules"].as_array().unwrap().iter();
        rules.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the alert fires.
    pub async fn fires(&self, alert: &str) {
        soon(alert, async || {
            let alerts = self.get("/api/v1/alerts", &[]).await;
            let is_firing =
                |entry: &Value| entry["labels"]["alertname"] == alert && entry["state"] == "firing";
            alerts["alerts"].as_array().unwrap().iter().any(is_firing)
        })
        .await;
    }
}

pub async fn soon(condition: &str, mut is_met: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_met().await {
        assert!(start.elapsed() < PATIENCE, "not in time: {condition}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "Prometheus uses this machine's clock")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

fn number(value: &Value) -> f64 {
    value.as_str().unwrap().parse().unwrap()
}

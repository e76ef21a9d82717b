//! A Prometheus process and its queries.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tidegate_testkit::Prometheus;

/// Long enough for a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Scraping {
    prometheus: Prometheus,
    http: reqwest::Client,
}

impl Scraping {
    /// Starts a Prometheus that scrapes these targets five times a second, with an optional file of alerts.
    pub(super) fn of(targets: &[String], rule_file: Option<&std::path::Path>) -> Self {
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
    pub(super) async fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let found = self.get("/api/v1/query", &[("query", query)]).await;
        let series = found["result"].as_array().unwrap().iter();
        series.map(|series| (series["metric"].clone(), number(&series["value"][1]))).collect()
    }

    /// Returns whether the query has returned a finite number since `since`.
    pub(super) async fn has_data(&self, query: &str, since: SystemTime) -> bool {
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

    /// Returns the names of the alerts in its rule files.
    pub(super) async fn alerts(&self) -> Vec<String> {
        let groups = self.get("/api/v1/rules", &[("type", "alert")]).await;
        let rules =
            groups["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
        rules.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the alert fires.
    pub(super) async fn fires(&self, alert: &str) {
        soon(alert, async || {
            let alerts = self.get("/api/v1/alerts", &[]).await;
            let is_firing =
                |entry: &Value| entry["labels"]["alertname"] == alert && entry["state"] == "firing";
            alerts["alerts"].as_array().unwrap().iter().any(is_firing)
        })
        .await;
    }
}

pub(super) async fn soon(condition: &str, mut is_met: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_met().await {
        assert!(start.elapsed() < PATIENCE, "not in time: {condition}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "Prometheus uses this machine's clock")]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

fn number(value: &Value) -> f64 {
    value.as_str().unwrap().parse().unwrap()
}

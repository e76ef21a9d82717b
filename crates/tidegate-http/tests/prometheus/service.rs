//! A service in this process whose metrics are scraped. Tests can bring its gates into any failure.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use tidegate::metrics::{Metrics, names};
use tidegate::{Builder, Gate};
use tidegate_rules::{Loader, ReloadingRules};
use tokio::task::JoinHandle;

use crate::support::fixture::namespace;

pub(super) struct Service {
    pub(super) address: SocketAddr,
    pub(super) metrics: Arc<Metrics>,
    serving: JoinHandle<()>,
}

impl Service {
    pub(super) async fn start() -> Self {
        let recorder = PrometheusBuilder::new().set_buckets(&names::SECONDS).unwrap().build_recorder();
        let handle = recorder.handle();
        let metrics = Arc::new(Metrics::with_recorder(recorder));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/metrics", get(async move || handle.render()));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, metrics, serving }
    }

    /// Returns a builder whose limiter reports to this service's metrics.
    pub(super) fn builder(&self, url: &str) -> Builder {
        Builder::default().url(url).namespace(&namespace()).observer(self.metrics.clone())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Checks one of ten keys of a gate every few ms, until it is dropped.
pub(super) struct Load(JoinHandle<()>);

impl Load {
    pub(super) fn on(gate: Gate) -> Self {
        Self(tokio::spawn(async move {
            for number in 0_u64.. {
                let _ = gate.check(format!("user:{}", number % 10)).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A rules file that a loader follows.
pub(super) struct Followed {
    file: PathBuf,
    _watched: ReloadingRules,
}

impl Followed {
    /// Follows a file with `rules` rules.
    pub(super) fn new(service: &Service, url: &str, rules: usize) -> Self {
        let name = format!("tidegate-alerts-{}-{}.yaml", std::process::id(), service.address.port());
        let file = std::env::temp_dir().join(name);
        write(&file, rules);
        let watched = Loader::new().watch(&file, &service.builder(url).build().unwrap()).unwrap();
        Self { file, _watched: watched }
    }

    pub(super) fn write(&self, rules: usize) {
        write(&self.file, rules);
    }

    pub(super) fn spoil(&self) {
        std::fs::write(&self.file, "domain: d\ndescriptors: none\n").unwrap();
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn write(file: &std::path::Path, rules: usize) {
    let rule =
        |number| format!("  - {{ key: k{number}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n");
    let rules: String = (0..rules).map(rule).collect();
    std::fs::write(file, format!("domain: d\ndescriptors:\n{rules}")).unwrap();
}

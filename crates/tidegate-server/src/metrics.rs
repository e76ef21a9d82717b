//! The metrics of a service, for Prometheus: those of its limiter, and those of its ports.

mod names;
pub(crate) mod requests;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tidegate::metrics::Metrics;
use tidegate::metrics::names as limiter_names;
use tokio::time::sleep;

use self::names::Metric;

/// The pause between two runs of the upkeep. Until then, histograms keep each value.
const UPKEEP: Duration = Duration::from_secs(1);
const METADATA: Metadata<'_> = Metadata::new("tidegate-server", Level::INFO, Some(module_path!()));

/// The metrics of a service and its limiter, in a registry of their own. Clones share it.
///
/// Give the [observer](Self::observer) to the limiter, and the metrics to [`Server::metrics`](crate::Server::metrics);
/// the admin port then serves them at `/metrics`. The recorder of the program, if it has one, is not touched.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate::{Limiter, Quota, Rate};
/// use tidegate_server::ServiceMetrics;
///
/// let metrics = ServiceMetrics::new();
/// let limiter = Limiter::builder().in_memory().observer(metrics.observer()).build()?;
/// limiter.gate("login", Quota::token_bucket(5, Rate::per_minute(5))).check("user:42").await?;
/// assert!(metrics.render().contains("tidegate_decisions_total{gate=\"login\",outcome=\"allowed\",source=\"memory\"} 1"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ServiceMetrics(Arc<Registry>);

struct Registry {
    recorder: Arc<PrometheusRecorder>,
    prometheus: PrometheusHandle,
}

impl ServiceMetrics {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        let is_of_checks = Matcher::Full(limiter_names::CALL_CHECKS.name.to_owned());
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets(&limiter_names::SECONDS);
        let builder =
            builder.and_then(|builder| builder.set_buckets_for_metric(is_of_checks, &limiter_names::CHECKS));
        #[allow(clippy::expect_used, reason = "only an empty list of buckets is an error")]
        let recorder = builder.expect("both lists have buckets").build_recorder();
        let prometheus = recorder.handle();
        names::describe_all(&recorder);
        let metrics = Self(Arc::new(Registry { recorder: Arc::new(recorder), prometheus }));
        // Shown from the start.
        metrics.counter(&names::DROPPED_LOG_ENTRIES, &[]).increment(0);
        metrics
    }

    /// Returns an observer that counts the events of a limiter here.
    #[must_use]
    pub fn observer(&self) -> Metrics {
        Metrics::with_recorder(self.0.recorder.clone())
    }

    /// Returns all metrics in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.prometheus.render()
    }

    /// Frees the single values of histograms, again and again.
    pub(crate) async fn run_upkeep(&self) -> Infallible {
        loop {
            sleep(UPKEEP).await;
            self.0.prometheus.run_upkeep();
        }
    }

    /// Counts an entry that the program's log dropped, because its reader was too slow.
    pub fn count_dropped_log_entry(&self) {
        self.counter(&names::DROPPED_LOG_ENTRIES, &[]).increment(1);
    }

    /// Returns the number of open connections of a port.
    pub(crate) fn connections(&self, port: &'static str) -> Gauge {
        let gauge = self.0.recorder.register_gauge(&key(&names::CONNECTIONS, &[("port", port)]), &METADATA);
        gauge.increment(0.0);
        gauge
    }

    /// Returns the number of connections that a port has closed for this reason before any request.
    pub(crate) fn rejected_connections(&self, port: &'static str, reason: &'static str) -> Counter {
        let counter = self.counter(&names::REJECTED_CONNECTIONS, &[("port", port), ("reason", reason)]);
        counter.increment(0);
        counter
    }

    /// Returns the number of attempts of a port to accept a connection that failed.
    pub(crate) fn failed_accepts(&self, port: &'static str) -> Counter {
        let counter = self.counter(&names::FAILED_ACCEPTS, &[("port", port)]);
        counter.increment(0);
        counter
    }

    /// Returns the number of tokens that the admin port has rejected for this reason.
    pub(crate) fn rejected_logins(&self, reason: &'static str) -> Counter {
        let counter = self.counter(&names::REJECTED_LOGINS, &[("reason", reason)]);
        counter.increment(0);
        counter
    }

    fn counter(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Counter {
        self.0.recorder.register_counter(&key(metric, labels), &METADATA)
    }

    fn histogram(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Histogram {
        self.0.recorder.register_histogram(&key(metric, labels), &METADATA)
    }
}

impl Default for ServiceMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ServiceMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceMetrics").finish_non_exhaustive()
    }
}

fn key(metric: &Metric, labels: &[(&'static str, &str)]) -> Key {
    debug_assert!(labels.iter().map(|(name, _)| name).eq(metric.labels), "{}", metric.name);
    let labels = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned()));
    Key::from_parts(metric.name, labels.collect::<Vec<_>>())
}

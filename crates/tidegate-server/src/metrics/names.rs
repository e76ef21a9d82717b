//! The metrics of the service's ports: every name with its labels, its unit and its description. Those of its limiter
//! are in `tidegate::metrics::names`.

use ::metrics::{Recorder, Unit};

/// A metric: its name and properties.
pub(super) struct Metric {
    pub(super) name: &'static str,
    /// None of them holds a key, or any other text of a client.
    pub(super) labels: &'static [&'static str],
    unit: Unit,
    kind: MetricKind,
    description: &'static str,
}

enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

pub(super) const REQUESTS: Metric = Metric {
    name: "tidegate_server_requests_total",
    labels: &["protocol", "method", "code"],
    unit: Unit::Count,
    kind: MetricKind::Counter,
    description: "Requests that were answered.",
};

pub(super) const REQUEST_SECONDS: Metric = Metric {
    name: "tidegate_server_request_seconds",
    labels: &["protocol", "method"],
    unit: Unit::Seconds,
    kind: MetricKind::Histogram,
    description: "Time from the head of a request to its response; of a gRPC request that succeeds, from its message.",
};

pub(super) const CONNECTIONS: Metric = Metric {
    name: "tidegate_server_connections",
    labels: &["port"],
    unit: Unit::Count,
    kind: MetricKind::Gauge,
    description: "Open connections.",
};

pub(super) const REJECTED_CONNECTIONS: Metric = Metric {
    name: "tidegate_server_rejected_connections_total",
    labels: &["port", "reason"],
    unit: Unit::Count,
    kind: MetricKind::Counter,
    description: "Connections that were closed before a request.",
};

pub(super) const FAILED_ACCEPTS: Metric = Metric {
    name: "tidegate_server_failed_accepts_total",
    labels: &["port"],
    unit: Unit::Count,
    kind: MetricKind::Counter,
    description: "Attempts to accept a connection that failed, such as without a free file.",
};

pub(super) const REJECTED_LOGINS: Metric = Metric {
    name: "tidegate_server_rejected_logins_total",
    labels: &["reason"],
    unit: Unit::Count,
    kind: MetricKind::Counter,
    description: "Tokens that the admin port has rejected.",
};

pub(super) const DROPPED_LOG_ENTRIES: Metric = Metric {
    name: "tidegate_server_dropped_log_entries_total",
    labels: &[],
    unit: Unit::Count,
    kind: MetricKind::Counter,
    description: "Log entries that were dropped because standard error was not read.",
};

const ALL: [Metric; 7] = [
    REQUESTS,
    REQUEST_SECONDS,
    CONNECTIONS,
    REJECTED_CONNECTIONS,
    FAILED_ACCEPTS,
    REJECTED_LOGINS,
    DROPPED_LOG_ENTRIES,
];

/// Tells a recorder the descriptions.
pub(super) fn describe_all(recorder: &impl Recorder) {
    for Metric { name, unit, kind, description, .. } in ALL {
        let (name, unit, description) = (name.into(), Some(unit), description.into());
        match kind {
            MetricKind::Counter => recorder.describe_counter(name, unit, description),
            MetricKind::Gauge => recorder.describe_gauge(name, unit, description),
            MetricKind::Histogram => recorder.describe_histogram(name, unit, description),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const PREFIX: &str = "tidegate_server_";

    /// Reads a file of `docs/operate`, which no package of this crate contains.
    fn page(name: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate");
        std::fs::read_to_string(folder.join(name)).unwrap()
    }

    /// Returns the names in a text that begin with [`PREFIX`].
    fn names(text: &str) -> impl Iterator<Item = &str> {
        let is_name_char = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        text.split(move |letter: char| !is_name_char(letter)).filter(|word| word.starts_with(PREFIX))
    }

    /// Returns whether Prometheus has a series of this name for the metric. A histogram has several.
    fn has_series(metric: &Metric, name: &str) -> bool {
        match (name.strip_prefix(metric.name), &metric.kind) {
            (Some(""), MetricKind::Counter | MetricKind::Gauge) => true,
            (Some(part), MetricKind::Histogram) => ["_bucket", "_sum", "_count"].contains(&part),
            _ => false,
        }
    }

    /// Returns the words between backticks.
    fn quoted(cell: &str) -> Vec<&str> {
        cell.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn page_lists_exactly_these_metrics_with_their_labels() {
        let page = page("metrics.md");
        let rows = page.lines().filter(|line| line.starts_with(&format!("| `{PREFIX}")));
        let listed: Vec<_> = rows
            .map(|row| {
                let mut cells = row.split('|').skip(1).map(quoted);
                (cells.next().unwrap()[0], cells.next().unwrap())
            })
            .collect();
        assert_eq!(listed, ALL.map(|metric| (metric.name, metric.labels.to_vec())));
    }

    #[test]
    fn dashboard_shows_each_metric() {
        let dashboard = page("dashboard.json");
        for metric in ALL {
            assert!(names(&dashboard).any(|name| has_series(&metric, name)), "{}", metric.name);
        }
    }

    #[test]
    fn queries_of_the_dashboard_the_alerts_and_the_runbook_name_existing_series() {
        for file in ["dashboard.json", "alerts.yml", "runbook.md"] {
            let text = page(file);
            let mut named = names(&text).peekable();
            assert!(named.peek().is_some(), "{file}");
            named.for_each(|name| {
                assert!(ALL.iter().any(|metric| has_series(metric, name)), "{file}: {name}")
            });
        }
    }
}

//! Tests that each metric name in the documents exists, and that the dashboard shows each metric.

use std::collections::BTreeSet;

use tidegate::metrics::names::{ALL, Metric, MetricKind, Unit};

const DASHBOARD: &str = include_str!("../../../../docs/operate/dashboard.json");
const ALERTS: &str = include_str!("../../../../docs/operate/alerts.yml");
const RUNBOOK: &str = include_str!("../../../../docs/operate/runbook.md");
const DEPLOY: &str = include_str!("../../../../docs/operate/deploy.md");
const METRICS: &str = include_str!("../../../../docs/operate/metrics.md");

const PREFIX: &str = "tidegate_";

/// Returns the series names of a metric. A histogram has several.
fn series(metric: &Metric) -> Vec<String> {
    match metric.kind {
        MetricKind::Histogram => {
            ["_bucket", "_sum", "_count"].map(|part| format!("{}{part}", metric.name)).into()
        }
        _ => vec![metric.name.to_owned()],
    }
}

/// Returns all words that begin with `PREFIX`, but for the names of tidegate-server, which tests its own.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let is_name_char = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let words = text.split(|letter: char| !is_name_char(letter));
    let words = words.filter(|word| word.len() > PREFIX.len() && word.starts_with(PREFIX));
    words.filter(|word| !word.starts_with("tidegate_server_")).collect()
}

#[test]
fn each_metric_name_in_the_documents_exists() {
    let known: BTreeSet<_> = ALL.iter().flat_map(series).collect();
    for (file, text) in [
        ("docs/operate/dashboard.json", DASHBOARD),
        ("docs/operate/alerts.yml", ALERTS),
        ("docs/operate/runbook.md", RUNBOOK),
        ("docs/operate/deploy.md", DEPLOY),
        ("docs/operate/metrics.md", METRICS),
    ] {
        for word in metric_names(text) {
            let is_whole = ALL.iter().any(|metric| metric.name == word);
            assert!(is_whole || known.contains(word), "{file}: {word} is not a metric");
        }
    }
}

#[test]
fn each_metric_is_on_the_dashboard() {
    let shown = metric_names(DASHBOARD);
    for metric in ALL {
        assert!(series(metric).iter().any(|series| shown.contains(&**series)), "{}", metric.name);
    }
}

#[test]
fn names_follow_prometheus_conventions_and_labels_are_bounded() {
    for metric in ALL {
        assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricKind::Counter, "{}", metric.name);
        let is_time = metric.unit == Unit::Seconds;
        assert_eq!(metric.name.ends_with("_seconds"), is_time, "{}", metric.name);
        assert!(metric.labels.iter().all(|label| {
            ["gate", "outcome", "source", "kind", "fate", "result", "code", "peer"].contains(label)
        }));
        assert!(metric.description.ends_with('.') && metric.description.len() > 10, "{}", metric.name);
    }
    let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), ALL.len());
}

#[test]
fn metric_names_occur_in_one_source_file() {
    fn sources(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { sources(&path, found) } else { found.push(path) }
        }
    }
    let mut files = Vec::new();
    sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src"), &mut files);
    for file in files.iter().filter(|file| !file.ends_with("metrics/names.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let named = ALL.iter().find(|metric| line.contains(metric.name));
            assert!(named.is_none(), "{}: {line}", file.display());
        }
    }
}

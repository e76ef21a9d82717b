//! Each name that is spelled anywhere is one that is counted, and each that is counted is shown.

use std::collections::BTreeSet;

use tidegate::metrics::names::{ALL, Kind, Metric, Unit};

const DASHBOARD: &str = include_str!("../../docs/dashboard.json");
const ALERTS: &str = include_str!("../../docs/alerts.yml");
const RUNBOOK: &str = include_str!("../../docs/runbook.md");
const CAPACITY: &str = include_str!("../../docs/capacity.md");
const README: &str = include_str!("../../README.md");

const BEGINS: &str = "tidegate_";

/// What is shown of it: a histogram as its parts.
fn series(metric: &Metric) -> Vec<String> {
    match metric.kind {
        Kind::Histogram => ["_bucket", "_sum", "_count"].map(|part| format!("{}{part}", metric.name)).into(),
        _ => vec![metric.name.to_owned()],
    }
}

/// All that begins as our names do.
fn spelled(text: &str) -> BTreeSet<&str> {
    let is_of_a_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let words = text.split(|letter: char| !is_of_a_name(letter));
    words.filter(|word| word.len() > BEGINS.len() && word.starts_with(BEGINS)).collect()
}

#[test]
fn each_name_that_is_spelled_is_counted() {
    let known: BTreeSet<_> = ALL.iter().flat_map(series).collect();
    for (file, text) in [
        ("docs/dashboard.json", DASHBOARD),
        ("docs/alerts.yml", ALERTS),
        ("docs/runbook.md", RUNBOOK),
        ("docs/capacity.md", CAPACITY),
        ("README.md", README),
    ] {
        for word in spelled(text) {
            let is_whole = ALL.iter().any(|metric| metric.name == word);
            assert!(is_whole || known.contains(word), "{file}: {word} is not counted");
        }
    }
}

#[test]
fn each_that_is_counted_is_on_the_dashboard() {
    let shown = spelled(DASHBOARD);
    for metric in ALL {
        assert!(series(metric).iter().any(|series| shown.contains(&**series)), "{}", metric.name);
    }
}

#[test]
fn names_are_as_prometheus_wants_them_and_labels_are_bounded() {
    for metric in ALL {
        assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
        let is_time = metric.unit == Unit::Seconds;
        assert_eq!(metric.name.ends_with("_seconds"), is_time, "{}", metric.name);
        assert!(
            metric
                .labels
                .iter()
                .all(|label| ["gate", "outcome", "source", "kind", "fate", "result"].contains(label))
        );
        assert!(metric.description.ends_with('.') && metric.description.len() > 10, "{}", metric.name);
    }
    let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), ALL.len());
}

#[test]
fn the_names_are_spelled_in_one_file() {
    fn sources(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { sources(&path, found) } else { found.push(path) }
        }
    }
    let mut files = Vec::new();
    sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    for file in files.iter().filter(|file| !file.ends_with("metrics/names.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let spelled = ALL.iter().find(|metric| line.contains(metric.name));
            assert!(spelled.is_none(), "{}: {line}", file.display());
        }
    }
}

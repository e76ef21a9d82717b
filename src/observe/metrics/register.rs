//! Registers metrics with the program's recorder, or with a given one.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};

use super::names::{self, Metric, MetricKind};

pub(super) struct Register(Option<Box<dyn Recorder + Send + Sync>>);

const METADATA: Metadata<'_> = Metadata::new("tidegate", Level::INFO, Some(module_path!()));

impl Register {
    /// Uses the program's recorder.
    pub(super) const fn global() -> Self {
        Self(None)
    }

    pub(super) fn of(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(recorder)))
    }

    pub(super) fn describe_all(&self) {
        for Metric { name, unit, kind, description, .. } in names::ALL {
            self.with(|recorder| {
                let describe = match kind {
                    MetricKind::Counter => Recorder::describe_counter,
                    MetricKind::Gauge => Recorder::describe_gauge,
                    MetricKind::Histogram => Recorder::describe_histogram,
                };
                describe(recorder, (*name).into(), Some(*unit), (*description).into());
            });
        }
    }

    pub(super) fn counter(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Counter {
        self.with(|recorder| recorder.register_counter(&key(metric, labels), &METADATA))
    }

    pub(super) fn gauge(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Gauge {
        self.with(|recorder| recorder.register_gauge(&key(metric, labels), &METADATA))
    }

    pub(super) fn histogram(&self, metric: &Metric) -> Histogram {
        self.with(|recorder| recorder.register_histogram(&key(metric, &[]), &METADATA))
    }

    fn with<T>(&self, register: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.0 {
            Some(recorder) => register(&**recorder),
            None => metrics::with_recorder(register),
        }
    }
}

fn key(metric: &Metric, labels: &[(&'static str, &str)]) -> Key {
    debug_assert!(labels.iter().map(|(name, _)| name).eq(metric.labels), "{}", metric.name);
    let labels = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned()));
    Key::from_parts(metric.name, labels.collect::<Vec<_>>())
}

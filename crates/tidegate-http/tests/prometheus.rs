//! A real Prometheus scrapes the metrics; the dashboard, the alerts, the runbook and the metric names agree.

mod alerts;
mod dashboard;
mod names;
mod service;

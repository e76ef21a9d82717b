//! A real Prometheus sees what was counted; dashboard, alerts, runbook and names agree.

mod alerts;
mod dashboard;
mod names;
mod server;
mod service;

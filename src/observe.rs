//! What a service and its operators see: events, metrics, traces, health and figures.

pub(crate) mod figures;
pub(crate) mod health;
#[cfg(feature = "metrics")]
pub mod metrics;
pub(crate) mod observer;
pub(crate) mod trace;
pub(crate) mod warning;

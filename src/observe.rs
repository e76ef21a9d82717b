//! What a service and its operators see: events, metrics, traces, health and figures.

pub(crate) mod figures;
pub(crate) mod health;
#[cfg(feature = "metrics")]
pub mod metrics;
pub(crate) mod observer;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod readable_names;
#[cfg(feature = "regions")]
pub(crate) mod replication;
pub(crate) mod trace;
pub(crate) mod warning;

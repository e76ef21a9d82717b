//! Tracing (feature `tracing`): a span at `INFO` for each request of both ports, with the trace context of its client.
//! The spans of checks are its children.
//!
//! Without the feature, requests have no span.

#[cfg(feature = "tracing")]
mod span;
#[cfg(not(feature = "tracing"))]
mod without;

#[cfg(feature = "tracing")]
pub(crate) use self::span::{SpanHook, traced};
#[cfg(not(feature = "tracing"))]
pub(crate) use self::without::{SpanHook, traced};

//! Tracing (feature `tracing`). Each check has a span at `DEBUG` with its cost; the decision adds the gate,
//! outcome and source. Events at `WARN` and `INFO` notify the operator. These
//! spans and events never contain a key.
//!
//! Without the feature, all of these functions do nothing.

#[cfg(feature = "tracing")]
mod events;
#[cfg(feature = "tracing")]
mod span;
#[cfg(not(feature = "tracing"))]
mod without;

#[cfg(feature = "tracing")]
pub(crate) use self::events::with_events;
#[cfg(feature = "tracing")]
pub(crate) use self::span::Span;
#[cfg(not(feature = "tracing"))]
pub(crate) use self::without::{Span, with_events};

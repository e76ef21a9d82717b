//! What is traced (feature `tracing`): a span at `DEBUG` for each ask, with its cost, and when it is
//! decided its gate, outcome and source; events at `WARN` and `INFO` for what an operator should see.
//! Never a key.
//!
//! Without the feature all of it is nothing.

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

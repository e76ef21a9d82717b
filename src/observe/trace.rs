//! Tracing (feature `tracing`). Each check has a span at `DEBUG` with its cost; the decision adds the gate,
//! outcome and source. Events at `WARN` and `INFO` notify the operator. These
//! spans and events never contain a key.

#[cfg(feature = "tracing")]
mod events;
mod span;

use std::sync::Arc;

pub(crate) use self::span::Span;
use super::observer::Observer;

/// Returns an observer that writes events, if the feature is on, and then notifies the given observer, if any.
pub(crate) fn with_events(observer: Option<Arc<dyn Observer>>) -> Option<Arc<dyn Observer>> {
    #[cfg(feature = "tracing")]
    let observer = Some(events::with_events(observer));
    observer
}

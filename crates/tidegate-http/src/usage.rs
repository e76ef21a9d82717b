//! Units that the service reports while it responds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "axum")]
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::Extensions;
#[cfg(feature = "axum")]
use http::StatusCode;
#[cfg(feature = "axum")]
use http::request::Parts;

const NONE: u64 = u64::MAX;

/// The error of an extractor of [`Usage`]. A handler's reports would be charged nowhere.
#[cfg(any(feature = "actix", feature = "axum"))]
pub(super) const USAGE_NOT_CHARGED: &str =
    "The handler reports its usage, but no rate limit charges it. Set Charge::usage().";

/// The units that one request has used, reported by its handler: see [`Charge::usage`](crate::Charge::usage).
///
/// The layer puts it into the request's extensions. With the feature `axum` or `actix` it is an extractor, and
/// `Option<Usage>` extracts it where a request may be without one, such as a skipped request. Clones share
/// the units. Reports after the response body has ended or was dropped have no effect. A stream that is dropped
/// with the body may still report in its `Drop`.
///
/// ```
/// use tidegate_http::Usage;
///
/// fn next_event(usage: &Usage, event: &str) -> String {
///     usage.add(event.split(' ').count() as u64);
///     format!("data: {event}\n\n")
/// }
/// # assert_eq!(next_event(&Usage::default(), "a b"), "data: a b\n\n");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Usage {
    inner: Arc<UsageInner>,
}

#[derive(Debug)]
struct UsageInner {
    /// [`NONE`] until the first report.
    units: AtomicU64,
    /// [`NONE`] if no units were taken.
    reserved: AtomicU64,
}

impl Default for UsageInner {
    fn default() -> Self {
        Self { units: AtomicU64::new(NONE), reserved: AtomicU64::new(NONE) }
    }
}

impl Usage {
    /// Adds units to those reported so far.
    pub fn add(&self, units: u64) {
        let add = |reported| {
            let reported = if reported == NONE { 0_u64 } else { reported };
            Some(reported.saturating_add(units).min(NONE - 1))
        };
        let _ = self.inner.units.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Replaces the units reported so far.
    pub fn set(&self, units: u64) {
        self.inner.units.store(units.min(NONE - 1), Ordering::Relaxed);
    }

    /// Returns the units reported so far, or `None` before the first report.
    #[must_use]
    pub fn reported(&self) -> Option<u64> {
        some(&self.inner.units)
    }

    /// Returns the units that were taken for this request before it entered the service: its cost. A handler that
    /// uses no more is never charged above its limit. Of several limits that charge the usage, the smallest
    /// number counts. Returns 0 if none were taken, as in shadow mode.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        some(&self.inner.reserved).unwrap_or(0)
    }

    pub(super) fn reserve(&self, units: u64) {
        self.inner.reserved.fetch_min(units, Ordering::Relaxed);
    }
}

fn some(units: &AtomicU64) -> Option<u64> {
    Some(units.load(Ordering::Relaxed)).filter(|units| *units != NONE)
}

/// Fails with status 500 if no layer around the handler has a [`Charge::usage`](crate::Charge::usage): its
/// reports would be charged nowhere.
#[cfg(feature = "axum")]
impl<S: Send + Sync> FromRequestParts<S> for Usage {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get().cloned().ok_or((StatusCode::INTERNAL_SERVER_ERROR, USAGE_NOT_CHARGED))
    }
}

#[cfg(feature = "axum")]
impl<S: Send + Sync> OptionalFromRequestParts<S> for Usage {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}

/// The extensions in which a framework hands values to handlers, and to layers nested in this one.
pub(super) trait RequestExtensions {
    fn find<T: Clone + Send + Sync + 'static>(&self) -> Option<T>;
    fn set<T: Clone + Send + Sync + 'static>(&mut self, value: T);
}

impl RequestExtensions for Extensions {
    fn find<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.get().cloned()
    }

    fn set<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_add_up_and_saturate() {
        let usage = Usage::default();
        assert_eq!((usage.reported(), usage.reserved()), (None, 0));
        usage.add(0);
        assert_eq!(usage.reported(), Some(0));
        usage.clone().add(3);
        usage.add(4);
        assert_eq!(usage.reported(), Some(7));
        usage.set(2);
        assert_eq!(usage.reported(), Some(2));
        usage.set(u64::MAX);
        usage.add(u64::MAX);
        assert_eq!(usage.reported(), Some(u64::MAX - 1));
        usage.reserve(9);
        usage.reserve(5);
        usage.reserve(7);
        assert_eq!(usage.reserved(), 5);
    }
}

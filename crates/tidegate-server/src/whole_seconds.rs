//! Times for clients, in whole seconds.

use std::time::Duration;

use http::header::HeaderValue;

/// Rounds up: a client that waits for that long is not early.
pub(crate) const fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add((wait.subsec_nanos() > 0) as u64)
}

/// Returns the value of the header `Retry-After`: at least 1, since no client shall repeat a request at once.
pub(crate) fn retry_after(wait: Duration) -> HeaderValue {
    whole_seconds(wait).max(1).into()
}

//! What clients read: times in whole seconds, and texts of errors, which can quote the request.

use std::time::Duration;

use http::header::HeaderValue;

/// The maximum number of characters of a text.
const MAX_CHARS: usize = 1_000;

pub(crate) fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Rounds up: a client that waits for that long is not early.
pub(crate) const fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add((wait.subsec_nanos() > 0) as u64)
}

/// Returns the value of the header `Retry-After`: at least 1, since no client shall repeat a request at once.
pub(crate) fn retry_after(wait: Duration) -> HeaderValue {
    whole_seconds(wait).max(1).into()
}

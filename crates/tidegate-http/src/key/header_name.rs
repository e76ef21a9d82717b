//! Converts names of headers.

use http::header::HeaderName;

/// # Panics
///
/// If `name` is not a valid header name.
pub(super) fn header_name(name: impl TryInto<HeaderName>) -> HeaderName {
    name.try_into().unwrap_or_else(|_| panic!("not a valid header name"))
}

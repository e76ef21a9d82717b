//! Converts names of headers.

use std::fmt;

use http::header::HeaderName;

/// # Panics
///
/// If `name` is not a valid header name.
pub(super) fn header_name(name: impl TryInto<HeaderName> + fmt::Debug) -> HeaderName {
    let shown = format!("{name:?}");
    name.try_into().unwrap_or_else(|_| panic!("not a valid header name: {shown}"))
}

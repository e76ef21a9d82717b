//! Converts names of headers.

use std::fmt;

use http::header::HeaderName;

/// # Panics
///
/// If `name` is not a valid header name.
#[track_caller]
pub(super) fn header_name(name: impl TryInto<HeaderName> + fmt::Debug) -> HeaderName {
    let shown = format!("{name:?}");
    match name.try_into() {
        Ok(name) => name,
        Err(_) => {
            panic!("not a valid header name: {shown}: use letters, digits and `-`, as in \"x-api-key\"")
        }
    }
}

//! Names of headers that replace those of X-RateLimit.

use http::HeaderName;

/// Names for the headers of [`Headers::x_ratelimit`](tidegate_http::Headers::x_ratelimit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Instead of `X-RateLimit-Limit`.
    pub limit: HeaderName,
    /// Instead of `X-RateLimit-Remaining`.
    pub remaining: HeaderName,
    /// Instead of `X-RateLimit-Reset`.
    pub reset: HeaderName,
}

impl HeaderNames {
    /// Returns the name under which a header is sent.
    pub(crate) fn of<'n>(&'n self, name: &'n HeaderName) -> &'n HeaderName {
        match name.as_str() {
            "x-ratelimit-limit" => &self.limit,
            "x-ratelimit-remaining" => &self.remaining,
            "x-ratelimit-reset" => &self.reset,
            _ => name,
        }
    }
}

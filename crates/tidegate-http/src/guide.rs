//! The guide: limits in front of services and clients. [`tidegate::guide`] has the pages about the limiter,
//! and `tidegate_rules::guide` has the page about limits from files.
//!
//! The modules hold no items. Their documentation is the pages of `docs/guide`, so the examples there are
//! tested. A page about an optional feature exists only with that feature.

// `src/guide.rs` of `tidegate` explains the labels.

/// [request-keys.md]: crate::guide::request_keys
/// [semantics.md#the-limit-that-binds]: tidegate::guide#other-pages
/// [troubleshooting.md]: tidegate::guide#other-pages
#[doc = include_str!("../docs/http.md")]
pub mod http {}

/// [spoofing.md]: tidegate::guide#other-pages
/// [http.md]: crate::guide::http
/// [troubleshooting.md]: tidegate::guide#other-pages
#[doc = include_str!("../docs/request-keys.md")]
pub mod request_keys {}

#[cfg(feature = "client")]
#[doc = include_str!("../docs/outgoing.md")]
pub mod outgoing {}

//! The guide: how to use tidegate, a page per subject.
//!
//! The modules hold no items. Their documentation is the pages of `docs/guide`, so the examples there are
//! tested. A page about an optional feature exists only with that feature.

#[doc = include_str!("../docs/guide/getting-started.md")]
pub mod getting_started {}

#[doc = include_str!("../docs/guide/gates.md")]
pub mod gates {}

#[doc = include_str!("../docs/guide/keys.md")]
pub mod keys {}

#[doc = include_str!("../docs/guide/inspecting.md")]
pub mod inspecting {}

#[doc = include_str!("../docs/guide/failures.md")]
pub mod failures {}

#[doc = include_str!("../docs/guide/batching.md")]
pub mod batching {}

#[doc = include_str!("../docs/guide/leases.md")]
pub mod leases {}

#[doc = include_str!("../docs/guide/overrides.md")]
pub mod overrides {}

#[cfg(feature = "tower")]
#[doc = include_str!("../docs/guide/http.md")]
pub mod http {}

#[cfg(feature = "tower")]
#[doc = include_str!("../docs/guide/request-keys.md")]
pub mod request_keys {}

#[cfg(feature = "client")]
#[doc = include_str!("../docs/guide/outgoing.md")]
pub mod outgoing {}

#[cfg(feature = "rules")]
#[doc = include_str!("../docs/guide/rules.md")]
pub mod rules {}

#[cfg(feature = "cluster")]
#[doc = include_str!("../docs/guide/cluster.md")]
pub mod cluster {}

// Tests the example of this page, which is not part of the guide or of the packaged crate.
#[cfg(all(doctest, feature = "metrics"))]
#[doc = include_str!("../docs/operate/metrics.md")]
mod metrics {}

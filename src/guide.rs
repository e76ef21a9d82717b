//! The guide: how to use tidegate, a page per subject.
//!
//! The modules hold no items. Their documentation is the pages of `docs/guide`, so the examples there are
//! tested. A page about an optional feature exists only with that feature.
//!
//! # Other pages
//!
//! These pages belong to other crates:
//!
//! | module | pages |
//! | --- | --- |
//! | `tidegate_http::guide` | `http.md`, `request-keys.md`, `by-country.md`, `llm.md`, `outgoing.md`: limits in front of services and clients |
//! | `tidegate_rules::guide` | `rules.md`: limits from files |
//!
//! These pages are files of the repository:
//!
//! | file | contents |
//! | --- | --- |
//! | `docs/operate/cli.md` | the commands of the program `tidegate` |
//! | `docs/operate/redis-user.md` | the permissions that the Redis user needs |
//! | `docs/operate/metrics.md` | metrics and tracing |
//! | `docs/operate/deploy.md#bytes-per-key` | the bytes of each key |
//! | `docs/operate/runbook.md#warnings` | the warnings, with cause and fix of each |
//! | `docs/measurements/2026-11-adaptive.md` | adaptive limits compared with fixed limits |
//! | `docs/reference/semantics.md` | the definition of each decision |
//! | `docs/reference/faults.md` | the outcome of a check in each fault |
//! | `docs/reference/chaos.md` | a fleet under load during faults |
//! | `docs/reference/spoofing.md` | header tricks, and the key that each yields |

// Each page links by labels. Its last lines define them as files, for GitHub and the book. The lines above
// each `include_str!` define them as items, for rustdoc: in CommonMark, the first definition of a label applies.

/// [http.md]: crate::guide#other-pages
/// [gates.md]: crate::guide::gates
/// [request-keys.md]: crate::guide#other-pages
/// [rules.md]: crate::guide#other-pages
/// [failures.md]: crate::guide::failures
#[cfg_attr(feature = "cluster", doc = "[cluster.md]: crate::guide::cluster")]
/// [redis-user.md]: crate::guide#other-pages
#[doc = include_str!("../docs/guide/getting-started.md")]
pub mod getting_started {}

/// [leases.md]: crate::guide::leases
/// [in-flight.md]: crate::guide::in_flight
/// [reservations.md]: crate::guide::reservations
/// [metrics.md]: crate::guide#other-pages
#[cfg_attr(feature = "cluster", doc = "[cluster.md]: crate::guide::cluster")]
/// [batching.md]: crate::guide::batching
/// [batching.md#runtimes]: crate::guide::batching#runtimes
/// [rules.md]: crate::guide#other-pages
/// [semantics.md#calendar-windows]: crate::guide#other-pages
/// [faults.md]: crate::guide#other-pages
/// [failures.md]: crate::guide::failures
#[doc = include_str!("../docs/guide/gates.md")]
pub mod gates {}

#[cfg_attr(feature = "cluster", doc = "[cluster.md]: crate::guide::cluster")]
/// [deploy.md]: crate::guide#other-pages
#[doc = include_str!("../docs/guide/keys.md")]
pub mod keys {}

/// [keys.md]: crate::guide::keys
/// [overrides.md]: crate::guide::overrides
/// [redis-user.md]: crate::guide#other-pages
/// [cli.md]: crate::guide#other-pages
#[doc = include_str!("../docs/guide/inspecting.md")]
pub mod inspecting {}

/// [in-flight.md]: crate::guide::in_flight
/// [faults.md]: crate::guide#other-pages
/// [chaos.md]: crate::guide#other-pages
/// [closed-connections.md]: crate::guide#other-pages
/// [runbook.md]: crate::guide#other-pages
#[cfg_attr(feature = "cluster", doc = "[cluster.md]: crate::guide::cluster")]
#[doc = include_str!("../docs/guide/failures.md")]
pub mod failures {}

/// [leases.md]: crate::guide::leases
/// [gates.md#round-trips-and-retries]: crate::guide::gates#round-trips-and-retries
#[doc = include_str!("../docs/guide/batching.md")]
pub mod batching {}

#[doc = include_str!("../docs/guide/leases.md")]
pub mod leases {}

/// [gates.md]: crate::guide::gates
/// [http.md]: crate::guide#other-pages
/// [http.md#priorities]: crate::guide#other-pages
/// [failures.md]: crate::guide::failures
/// [semantics.md#adaptive-limit]: crate::guide#other-pages
/// [2026-11-adaptive.md]: crate::guide#other-pages
#[doc = include_str!("../docs/guide/in-flight.md")]
pub mod in_flight {}

/// [failures.md]: crate::guide::failures
/// [in-flight.md]: crate::guide::in_flight
#[doc = include_str!("../docs/guide/reservations.md")]
pub mod reservations {}

/// [in-flight.md]: crate::guide::in_flight
/// [cli.md#switches-and-overrides]: crate::guide#other-pages
#[doc = include_str!("../docs/guide/overrides.md")]
pub mod overrides {}

#[cfg(feature = "cluster")]
/// [failures.md]: crate::guide::failures
/// [redis-user.md]: crate::guide#other-pages
#[doc = include_str!("../docs/guide/cluster.md")]
pub mod cluster {}

#[cfg(feature = "regions")]
/// [failures.md]: crate::guide::failures
/// [overrides.md]: crate::guide::overrides
#[doc = include_str!("../docs/guide/regions.md")]
pub mod regions {}

// The examples of these pages are tested, too.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(all(doctest, feature = "metrics"))]
#[doc = include_str!("../docs/operate/metrics.md")]
mod metrics {}

#![doc = include_str!("../README.md")]
//! # Guide
//!
//! The module [`guide`] holds the pages of the guide.
//!
//! # Layout
//!
//! Modules import only from the lines below them:
//!
//! ```text
//! guide                                  the pages of docs/guide
//!         |
//! http, rules, inspect                   in front of services and clients; limits from files; for operators
//!         |
//! limiter, control, gate, check, reservation    the objects and checks of a service
//!         |
//! lease                                  units that this process has taken in advance
//!         |
//! deny_cache                             repeated denials without a call to Redis
//!         |
//! fallback                               decisions while Redis is unavailable
//!         |
//! overrides                              overrides by operators for the whole fleet
//!         |
//! breaker                                whether checks are sent to Redis at all
//!         |
//! batch                                  many callers, one call
//!         |
//! store (redis | memory)                 where state lives
//!         |
//! algorithm, script, connection          arithmetic, scripts, transport
//!         |
//! metrics, most_denied, trace            observability
//!         |
//! quota, decision, health, key, as_key, error, keyed_hash, gate_name, sharded_arc, clock, observer, background, sync
//! ```
//!
//! Each algorithm is one file in `src/algorithm` and one file of the same name in `lua`; tests compare the two.

#[allow(missing_docs, clippy::must_use_candidate, reason = "public to `internals` alone")]
mod algorithm;
mod as_key;
mod background;
mod batch;
mod breaker;
mod check;
mod clock;
mod connection;
mod control;
mod decision;
mod deny_cache;
mod error;
mod fallback;
mod gate;
mod gate_name;
pub mod guide;
mod health;
#[cfg(feature = "tower")]
pub mod http;
#[cfg(feature = "cli")]
#[allow(missing_docs, clippy::must_use_candidate, reason = "public to `internals` alone")]
mod inspect;
mod key;
mod keyed_hash;
mod lease;
mod limiter;
#[cfg(feature = "metrics")]
pub mod metrics;
mod most_denied;
mod observer;
mod overrides;
pub mod quota;
mod reservation;
#[cfg(feature = "rules")]
pub mod rules;
#[allow(missing_docs, clippy::must_use_candidate, reason = "public to `internals` alone")]
mod script;
mod sharded_arc;
mod store;
mod sync;
mod trace;

// The public API contains its `Pool`, so callers need the same version.
pub use deadpool_redis;

pub use self::as_key::{AsKey, KeyBytes};
pub use self::check::Check;
pub use self::clock::ManualClock;
pub use self::control::Control;
pub use self::decision::{AllDecision, Decision, Source};
pub use self::error::Error;
pub use self::gate::Gate;
pub use self::health::Health;
pub use self::key::KeyMode;
pub use self::lease::{Lease, LeaseStats};
pub use self::limiter::{Builder, Limiter, OnFailure, Stub};
pub use self::most_denied::{DeniedKey, MostDenied};
pub use self::observer::Observer;
pub use self::overrides::{Override, Switch};
pub use self::quota::{Quota, Rate};
pub use self::reservation::Reservation;

/// Internals for the tests, demo, benches and command line of this repository. Not public: may change in any
/// release.
#[doc(hidden)]
pub mod internals {
    pub use crate::algorithm::*;
    #[cfg(feature = "cli")]
    pub use crate::inspect::*;
    pub use crate::quota::{FixedWindow, Kind, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};
    pub mod script {
        pub use crate::script::*;
    }
}

#![cfg_attr(docsrs, feature(doc_cfg))]
//! Rate limits that a whole fleet shares. State lives in Redis, and every decision is one atomic step.
//!
//! ```no_run
//! use tidegate::{Error, Limiter, Quota, Rate};
//!
//! const LOGIN: Quota = Quota::token_bucket(5, Rate::per_minute(5)); // an invalid quota does not compile
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let limiter = Limiter::builder().url("redis://127.0.0.1:6379").namespace("shop").build()?;
//!     let login = limiter.gate("login", LOGIN);
//!
//!     let decision = login.check("user:42").await?;
//!     if !decision.is_allowed() {
//!         println!("too many logins, try again in {:?}", decision.retry_after());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! In front of an HTTP service, the crate `tidegate-http` does it, here for each client's address:
//!
//! ```ignore
//! let limit = RateLimitLayer::new(limiter.gate("api", "100/min burst 20".parse()?), Key::client_ip(ClientIp::peer()));
//! let app = axum::Router::new().route("/", get("hi\n")).layer(limit);
//! ```
//!
//! Tests and single processes need no Redis:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
//! let limiter = tidegate::Limiter::in_memory();
//! let login = limiter.gate("login", "5/min burst 5".parse()?);
//! assert_eq!(login.check("user:42").await?.remaining(), 4);
//! # Ok(()) }
//! ```
//!
//! A [`Limiter`] owns the connection to Redis and the work in the background. A [`Gate`] is a named limit:
//! all processes share its counts. A [`Quota`] is an algorithm with its numbers. A [`Decision`] tells whether
//! the check was admitted, how many units are left, and when to try again.
//!
//! The module [`guide`] has a page per subject, from [the first service](guide::getting_started) to
//! [what happens when Redis fails](guide::failures). The crate `tidegate-http` is a layer in front of tower
//! services, `tidegate-rules` reads limits from files, and `tidegate-cli` is the operators' program.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | adds |
//! | --- | --- |
//! | `admin` | `admin`: inspects and changes the state in Redis, for operators' tools |
//! | `calendar` | `Quota::calendar_window`: days, weeks, months, quarters and years in a time zone |
//! | `cluster` | `Builder::cluster`: Redis Cluster |
//! | `http` | keys of the types of the crates `http` and `bytes`, such as `HeaderValue` |
//! | `metrics` | `metrics`: metrics for any recorder of the `metrics` facade |
//! | `regions` | one limit in several regions: `Gate::replicated`, `Builder::region` |
//! | `serde` | `Settings`, `Serialize` and `Deserialize` for [`Quota`] and [`Rate`], `Serialize` for [`Decision`] |
//! | `tls` | `rediss://` with rustls and ring |
//! | `tracing` | a span for each check, and events |
//!
//! # For crates that extend tidegate
//!
//! | module | contents |
//! | --- | --- |
//! | [`algorithm`] | the numbers of a quota, the state of a key, and the arithmetic between them |
//! | [`redact`] | keys, URLs and names as texts may show them |
//! | [`reference`](mod@reference) | the decisions of the scripts as integer arithmetic without I/O, for replays and conformance tests |
//! | [`script`] | the Lua scripts |
//! | `admin` (feature `admin`) | finds, reads and changes the state in Redis |
//! | `regions` (feature `regions`) | beside the mode of a gate: the decisions of one limit in several regions, as integer arithmetic without I/O and as scripts, and the replicator |
//!
//! Layers in front of services need [`Limiter::check_each`], [`Reservation`], [`AllDecision::of_each`] and
//! [`Decision::uncounted`], as `tidegate-http` and `tidegate-rules` do.
//!
//! # Layout
//!
//! A room is a file or folder directly below `src`. Rooms import only from their own line and the lines below; the files of
//! a room may know each other:
//!
//! ```text
//! guide                     the pages of docs/guide
//!     |
//! admin, reserve            for operators; units taken by an estimate, and settled later
//!     |
//! limiter                   the objects of a service: limiter, gates, checks, settings
//!     |
//! pipeline                  the path of a check, in call order
//!     |
//! in_flight                 units of in-flight limits that this process holds, and limits that follow the latency
//!     |
//! local                     what a process decides without Redis: leases, cached denials, breaker, fallback, overrides
//!     |
//! batch                     many callers, one call
//!     |
//! store, regions            where state lives: Redis, memory, stub; one limit in several regions
//!     |
//! connection                transport: reconnecting, sentinels, clusters, retries
//!     |
//! key, observe              keys in Redis; events, metrics, traces, health, figures
//!     |
//! quota, decision           algorithms with their numbers and reference; what was decided
//!     |
//! script, error, runtime    the Lua scripts; errors; time, locks, background work
//! ```
//!
//! Each algorithm is one file in `src/quota/algorithm` and one file of the same name in `lua/quota`; tests compare the two.

#[cfg(feature = "admin")]
pub mod admin;
mod batch;
mod connection;
mod decision;
mod error;
pub mod guide;
mod in_flight;
mod key;
mod limiter;
mod local;
mod observe;
mod pipeline;
pub mod quota;
#[cfg(feature = "regions")]
pub mod regions;
mod reserve;
mod runtime;
pub mod script;
mod store;

// The public API contains its `Pool`, so callers need the same version.
pub use deadpool_redis;

pub use self::decision::{AllDecision, Decision, Grant, Source};
pub use self::error::{Error, redact};
pub use self::in_flight::adaptive::Adaptive;
pub use self::in_flight::{OnLapse, Permit, Permits};
pub use self::key::KeyMode;
pub use self::key::as_key::{AsKey, KeyBytes};
pub use self::limiter::Limiter;
pub use self::limiter::acquire::{Acquire, Acquired};
pub use self::limiter::builder::Builder;
pub use self::limiter::check::Check;
pub use self::limiter::control::Control;
pub use self::limiter::gate::Gate;
#[cfg(feature = "serde")]
pub use self::limiter::settings::Settings;
pub use self::local::lease::{Lease, LeaseStats};
pub use self::local::on_failure::OnFailure;
pub use self::local::overrides::{Override, Switch};
pub use self::observe::health::Health;
#[cfg(feature = "metrics")]
pub use self::observe::metrics;
pub use self::observe::observer::{Event, EventKey, Observer};
pub use self::observe::warning::{RepeatedWarning, Warning};
pub use self::quota::ban::Ban;
pub use self::quota::settlement::Settlement;
pub use self::quota::{Quota, Rate};
#[doc(inline)]
pub use self::quota::{algorithm, reference};
pub use self::reserve::{HeldReservation, Reservation, Reserve, Token};
pub use self::runtime::clock::{ManualClock, Stopwatch};
pub use self::store::Stub;

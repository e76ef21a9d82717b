#![cfg_attr(docsrs, feature(doc_cfg))]
//! Rate limits that a whole fleet shares. State lives in Redis, and every decision is one atomic step.
//!
//! ```
//! use tidegate::{Error, Limiter, Quota, Rate};
//!
//! const LOGIN: Quota = Quota::token_bucket(5, Rate::per_minute(5)); // an invalid quota does not compile
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let limiter = Limiter::in_memory(); // in a fleet: Limiter::open("redis://…")?
//!     let login = limiter.gate("login", LOGIN);
//!
//!     let decision = login.check("user:42").await?;
//!     assert!(decision.is_allowed());
//!     assert_eq!(decision.remaining(), 4);
//!     Ok(())
//! }
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
//! | `serde` | `Serialize` and `Deserialize` for [`Quota`] and [`Rate`], `Serialize` for [`Decision`] |
//! | `tls` | `rediss://` with rustls and ring |
//! | `tracing` | a span for each check, and events |
//!
//! # For crates that extend tidegate
//!
//! | module | contents |
//! | --- | --- |
//! | [`algorithm`] | the numbers of a quota, the state of a key, and the arithmetic between them |
//! | [`redact`] | keys and URLs as texts may show them |
//! | [`reference`](mod@reference) | the decisions of the scripts as integer arithmetic without I/O, for replays and conformance tests |
//! | [`script`] | the Lua scripts |
//! | `admin` (feature `admin`) | finds, reads and changes the state in Redis |
//!
//! Layers in front of services need [`Limiter::check_each`], [`Reservation`], [`AllDecision::of_each`] and
//! [`Decision::uncounted`], as `tidegate-http` and `tidegate-rules` do.
//!
//! # Layout
//!
//! Modules import only from their own line and the lines below:
//!
//! ```text
//! guide                                  the pages of docs/guide
//!         |
//! builder, admin                         opening a limiter; for operators
//!         |
//! reserve, limiter, control, gate, check, acquire, take_up_to, reservation    the objects of a service
//!         |
//! pipeline                               the path of a check, in call order
//!         |
//! request                                a check on that path
//!         |
//! lease                                  units that this process has taken in advance
//!         |
//! permits                                units of in-flight limits that this process holds
//!         |
//! adaptive                               in-flight limits that follow the latency
//!         |
//! deny_cache                             repeated denials without a call to Redis
//!         |
//! fallback                               decisions while Redis is unavailable
//!         |
//! overrides, settle_queue                overrides by operators for the whole fleet; settles of reservations
//!         |
//! breaker                                whether checks are sent to Redis at all
//!         |
//! batch                                  many callers, one call
//!         |
//! store (redis | memory | stub)          where state lives
//!         |
//! connection                             transport
//!         |
//! warning_sink                           the destination of warnings
//!         |
//! metrics, most_denied, trace            observability
//!         |
//! reference, algorithm, script, quota, ban, decision, grant, health, key, as_key, error, redact, keyed_hash, gate_name, sharded_arc, generations, clock, observer, warning, figures, background, settlement, reservation_secret, sync
//! ```
//!
//! Each algorithm is one file in `src/algorithm` and one file of the same name in `lua`; tests compare the two.

mod acquire;
mod adaptive;
#[cfg(feature = "admin")]
pub mod admin;
pub mod algorithm;
mod as_key;
mod background;
mod ban;
mod batch;
mod breaker;
mod builder;
mod check;
mod clock;
mod connection;
mod control;
mod decision;
mod defined_gates;
mod deny_cache;
mod error;
mod fallback;
mod figures;
mod gate;
mod gate_name;
mod generations;
mod grant;
pub mod guide;
mod health;
mod key;
mod keyed_hash;
mod lease;
mod limiter;
#[cfg(feature = "metrics")]
pub mod metrics;
mod most_denied;
mod observer;
mod overrides;
mod permits;
mod pipeline;
pub mod quota;
pub mod redact;
pub mod reference;
mod request;
mod reservation;
mod reservation_secret;
mod reserve;
pub mod script;
mod settle_queue;
mod settlement;
mod sharded_arc;
mod store;
mod sync;
mod take_up_to;
mod trace;
mod warning;
mod warning_sink;

// The public API contains its `Pool`, so callers need the same version.
pub use deadpool_redis;

pub use self::acquire::{Acquire, Acquired};
pub use self::adaptive::Adaptive;
pub use self::as_key::{AsKey, KeyBytes};
pub use self::ban::Ban;
pub use self::builder::Builder;
pub use self::check::Check;
pub use self::clock::{ManualClock, Stopwatch};
pub use self::control::Control;
pub use self::decision::{AllDecision, Decision, Source};
pub use self::error::Error;
pub use self::fallback::OnFailure;
pub use self::gate::Gate;
pub use self::grant::Grant;
pub use self::health::Health;
pub use self::key::KeyMode;
pub use self::lease::{Lease, LeaseStats};
pub use self::limiter::Limiter;
pub use self::most_denied::{DeniedKey, MostDenied};
pub use self::observer::Observer;
pub use self::overrides::{Override, Switch};
pub use self::permits::{OnLapse, Permit, Permits};
pub use self::quota::{Quota, Rate};
pub use self::reservation::Reservation;
pub use self::reserve::{Reserve, Reserved, Token};
pub use self::settlement::Settlement;
pub use self::store::Stub;
pub use self::warning::{RepeatedWarning, Warning};

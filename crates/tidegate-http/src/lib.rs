#![cfg_attr(docsrs, feature(doc_cfg))]
// The first definition of a label applies: here, links of the README lead to items.
//! [tidegate]: tidegate
//! [http.md]: crate::guide::http
#![cfg_attr(feature = "rules", doc = "[by-country.md]: crate::guide::by_country")]
#![cfg_attr(all(feature = "axum", feature = "calendar"), doc = "[llm.md]: crate::guide::llm")]
//! [request-keys.md]: crate::guide::request_keys
#![cfg_attr(feature = "client", doc = "[outgoing.md]: crate::guide::outgoing")]
//! [getting-started.md]: tidegate::guide::getting_started
#![doc = include_str!("../README.md")]
//! # In front of any tower service
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use http::{Request, Response, StatusCode};
//! use tidegate_http::{Key, RateLimitLayer};
//! use tidegate::{Limiter, Quota, Rate};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! let limiter = Limiter::in_memory(); // in a fleet: Limiter::open("redis://…")?
//! let api = limiter.gate("api", Quota::token_bucket(2, Rate::per_minute(2)));
//! let service = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new(api, Key::header("x-api-key")))
//!     .service(service_fn(|_: Request<String>| async {
//!         Ok::<_, std::io::Error>(Response::new("hello".to_owned()))
//!     }));
//!
//! let request = || Request::builder().header("x-api-key", "k1").body(String::new()).unwrap();
//! let first = service.clone().oneshot(request()).await?;
//! assert_eq!(first.headers()["ratelimit-policy"], r#""api";q=2;w=60"#);
//! assert_eq!(first.headers()["ratelimit"], r#""api";r=1;t=30"#);
//! service.clone().oneshot(request()).await?;
//! let third = service.oneshot(request()).await?;
//! assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
//! assert_eq!(third.headers()["retry-after"], "30");
//! # Ok(()) }
//! ```
//!
//! # How a request is handled
//!
//! 1. Checks: the layer's [rules](GateRule) name the gates, keys and costs to check. Without a rule, the
//!    request is admitted.
//! 2. Admission: the limiter checks all gates in one atomic step. A denied request does not reach the service
//!    and is charged nothing. With [`RateLimitLayer::wait`], it waits for its turn instead.
//! 3. Handler: the service receives the request. The request's extensions hold the binding gate's
//!    [`Decision`](tidegate::Decision) and the [`AllDecision`](tidegate::AllDecision). A handler of axum extracts
//!    them with `axum::Extension`, one of actix-web with `web::ReqData`.
//!    At an in-flight limit, the request holds a permit until its response body has ended ([`RequestPermits`]).
//! 4. Settlement: the response can change the [`Charge`]: its status and headers, or what its body used
//!    ([`Usage`]), which is settled at the body's end.
//! 5. Headers: each response reports the remaining units ([`Headers`]), except those of gates in shadow mode.
//!
//! A handler without a layer around it decides a request by [`RateLimitLayer::admit`], or checks a
//! [`Gate`](tidegate::Gate) itself and responds with [`Rejection::of`] and [`Headers::of`].
//!
//! The module [`guide`] has a page per subject.
//!
//! # Rules from files
//!
//! With the feature `rules`, [`RateLimitLayer::with_rules`] takes the gates from rules files, which can
//! [reload on changes](tidegate_rules::ReloadingRules). The descriptors of a request come from the file or from
//! a closure ([`Descriptors`]). Responses name the limit by the rule's `name`, or else by the limit as text; by the rule's path if
//! [`Headers::rule_paths`] asks for it. Handlers
//! find the [`RulesDecision`](tidegate_rules::RulesDecision) in the request's extensions; the closure of
//! [`RateLimitLayer::on_rejection`] finds it in [`Rejection::rules_decision`].
//!
//! Otherwise both kinds of rules work alike. Only [rules](GateRule) in code can have a [`Charge`] of their
//! own and a cost computed from each request. They can also [colocate](GateRule::colocate_with) a key with
//! another key in a Redis Cluster. A domain in a file needs `charge: each` if its keys are in several hash
//! slots.
//!
//! # Responses to rejected requests
//!
//! | reason | HTTP response | gRPC (feature `tonic`) |
//! | --- | --- | --- |
//! | a gate denied the request | 429, Retry-After | `RESOURCE_EXHAUSTED`, RetryInfo |
//! | an operator has closed a gate ([`OnClosed`]) | 503 or 429, Retry-After | `UNAVAILABLE`, RetryInfo |
//! | the client has not sent a rule's key ([`MissingKey`]) | 400 | `INVALID_ARGUMENT` |
//! | the cost is above a limit, so the request can never be admitted | 400, with the cost and the limit | `OUT_OF_RANGE` |
//! | the limiter failed ([`OnError`]) | 503, Retry-After | `UNAVAILABLE`, RetryInfo |
//! | the service is set up wrongly ([`Reason::Misconfigured`]) | 500 | `INTERNAL` |
//!
//! Bodies are `application/problem+json`, or text if the request's Accept prefers it; the first 1,024 bytes of
//! Accept are read. All have `Cache-Control: no-store`, so that no cache keeps them as the page. Only a POST with
//! the content type `application/grpc` or `application/grpc-web`, alone or followed by `+` and a format, gets a
//! gRPC response. [`RateLimitLayer::on_rejection`] replaces these responses.
//!
//! # Disconnected clients
//!
//! When a client disconnects, the server drops the request's future:
//!
//! - A request in the wait queue frees its permit at once, and its units are refunded. Under `charge: each`, limits that
//!   have admitted it while others deny it stay charged.
//! - A request that the service has received stays charged, unless [`Charge::if_abandoned`] is set. So does one
//!   whose response body is dropped before its end, if its charge depends on the body.
//! - A request whose check is in flight may have been charged, and stays charged.
//!
//! A separate task sends the refund. It ends with Redis's reply or at the limiter's deadline.
//!
//! Permits of in-flight limits are released in each of these cases, and also if the handler panics.

#[cfg(feature = "actix")]
pub mod actix;
mod admission;
mod admitted;
mod admitted_request;
mod body;
mod charge;
mod check_group;
#[cfg(feature = "client")]
mod client;
mod decide;
#[cfg(feature = "rules")]
mod descriptors;
mod gate_rule;
mod headers;
mod in_flight;
mod key;
mod layer;
mod missing_key;
mod model_request;
mod pending_charge;
mod policy;
mod rejection;
mod request_checks;
mod request_permits;
mod reserved_slots;
mod response;
#[cfg(feature = "rules")]
mod rules;
mod service;
mod settings;
mod straight;
mod usage;
mod wait_queue;
mod warnings;

/// The version of `http` whose types this crate uses. actix-web has those of another version.
#[doc(no_inline)]
pub use http;
pub use ipnet::IpNet;

pub use self::admitted_request::AdmittedRequest;
pub use self::body::{BodyError, BoxError, ResponseBody};
pub use self::charge::{Abandoned, Charge};
#[cfg(feature = "client")]
pub use self::client::{Outgoing, OutgoingError, OutgoingFuture, OutgoingLayer};
#[cfg(feature = "rules")]
pub use self::descriptors::Descriptors;
pub use self::gate_rule::GateRule;
pub use self::headers::{Draft, Headers};
pub use self::key::{ClientIp, Key, PeerAddr, ToNetwork};
pub use self::layer::RateLimitLayer;
pub use self::missing_key::MissingKey;
pub use self::model_request::{ModelRequest, ModelRequestError};
pub use self::rejection::{OnClosed, Reason, Rejection};
pub use self::request_permits::RequestPermits;
pub use self::service::{RateLimit, ResponseFuture};
pub use self::settings::OnError;
pub use self::usage::Usage;

/// The guide: limits in front of services and clients. [`tidegate::guide`] has the pages about the limiter,
/// and `tidegate_rules::guide` has the page about limits from files.
///
/// The modules hold no items. Their documentation is the pages of `docs/guide`, so the examples there are
/// tested. A page about an optional feature exists only with that feature.
pub mod guide {
    // `src/guide.rs` of `tidegate` explains the labels.

    /// [request-keys.md]: crate::guide::request_keys
    /// [semantics.md#the-limit-that-binds]: tidegate::guide#other-pages
    /// [runbook.md]: tidegate::guide#other-pages
    #[doc = include_str!("../docs/http.md")]
    pub mod http {}

    /// [spoofing.md]: tidegate::guide#other-pages
    /// [http.md]: crate::guide::http
    /// [runbook.md]: tidegate::guide#other-pages
    #[doc = include_str!("../docs/request-keys.md")]
    pub mod request_keys {}

    /// [request-keys.md]: crate::guide::request_keys
    /// [rules.md]: tidegate_rules::guide::rules
    /// [leases.md]: tidegate::guide::leases
    /// [gates.md]: tidegate::guide::gates
    #[cfg(feature = "rules")]
    #[doc = include_str!("../docs/by-country.md")]
    pub mod by_country {}

    /// [reservations.md]: tidegate::guide::reservations
    /// [failures.md]: tidegate::guide::failures
    #[cfg(all(feature = "axum", feature = "calendar"))]
    #[doc = include_str!("../docs/llm.md")]
    pub mod llm {}

    #[cfg(feature = "client")]
    #[doc = include_str!("../docs/outgoing.md")]
    pub mod outgoing {}
}

//! Rate limiting for HTTP and gRPC services: a tower layer that checks gates before a request enters the
//! service and reports the limits to the client.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use http::{Request, Response, StatusCode};
//! use tidegate::http::{Key, RateLimitLayer};
//! use tidegate::{Limiter, Quota, Rate};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! let limiter = Limiter::in_memory(); // in a fleet: Limiter::open("redis://…")?
//! let api = limiter.gate("api", Quota::token_bucket(2, Rate::per_minute(2)));
//! let service = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new(api, Key::header("x-api-key")))
//!     .service(service_fn(|_: Request<String>| async { Ok::<_, std::io::Error>(Response::new("hello".to_owned())) }));
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
//! 1. The layer's [rules](Rule) name the gates, keys and costs to check. Without a rule, the request is
//!    admitted.
//! 2. All gates are checked in one atomic step. A denied request does not reach the service and is charged
//!    nothing; with [`RateLimitLayer::wait`], it waits for its turn instead.
//! 3. The binding gate's [`Decision`](crate::Decision) and the [`AllDecision`](crate::AllDecision) are in the
//!    request's extensions. With the feature `axum` both are extractors.
//! 4. The response can change the charge: [`Charge`].
//! 5. Each response reports the remaining units: [`Headers`].
//!
//! # Rules from files
//!
//! With the feature `rules`, [`RateLimitLayer::ruled`] takes the gates from rules, also those that [follow
//! their files](crate::rules::Watched), and the descriptors of a request from the file or from a closure
//! ([`Descriptors`]). The name of the limit in responses is a rule's `name`, or else its path; handlers and
//! [answers](Refusal::ruling) find the [`Ruling`](crate::rules::Ruling).
//!
//! Otherwise both kinds of rules work alike. Only [rules](Rule) in code can have a [`Charge`] of their own and
//! a cost computed from each request. They can also place a key beside another key in a Redis Cluster; a domain
//! in a file needs `charge: each` if its keys are in several slots.
//!
//! # Responses to rejected requests
//!
//! | when | answer | gRPC (feature `tonic`) |
//! | --- | --- | --- |
//! | denied | 429, Retry-After | `RESOURCE_EXHAUSTED`, RetryInfo |
//! | a rule's key is missing ([`MissingKey`]) | 400 | `INVALID_ARGUMENT` |
//! | the cost is above a limit, so that it can never pass | 413 | `OUT_OF_RANGE` |
//! | the limiter failed ([`OnError`]) | 503, Retry-After | `UNAVAILABLE`, RetryInfo |
//!
//! Bodies are `application/problem+json`, or text if the request's Accept prefers it.
//! [`RateLimitLayer::answer`] replaces these responses.
//!
//! # Disconnected clients
//!
//! When a client disconnects, the request's future is dropped. A request that waits frees its place at once,
//! and its units are given back. A request that the service already has stays charged, unless
//! [`Charge::if_abandoned`] is set. A separate task sends the refund and ends with the answer or the
//! limiter's deadline. A request whose check is in flight may have been charged, and stays charged.

mod answer;
mod asking;
mod body;
mod charge;
#[cfg(feature = "client")]
mod client;
mod deciding;
#[cfg(feature = "rules")]
mod descriptors;
#[cfg(feature = "axum")]
mod extract;
#[cfg(feature = "tonic")]
mod grpc;
mod headers;
mod key;
mod layer;
mod passage;
mod policy;
mod refusal;
mod rule;
#[cfg(feature = "rules")]
mod ruled;
mod service;
mod settings;
mod waiting;

pub use ipnet::IpNet;

pub use self::body::{BoxError, ResponseBody};
pub use self::charge::{Abandoned, Charge};
#[cfg(feature = "client")]
pub use self::client::{Outgoing, OutgoingError, OutgoingFuture, OutgoingLayer};
#[cfg(feature = "rules")]
pub use self::descriptors::Descriptors;
pub use self::headers::{Draft, Headers};
pub use self::key::{ClientIp, Key, PeerAddr, ToNetwork};
pub use self::layer::RateLimitLayer;
pub use self::refusal::{Reason, Refusal};
pub use self::rule::Rule;
pub use self::service::{RateLimit, ResponseFuture};
pub use self::settings::{MissingKey, OnError};

//! In front of an HTTP or gRPC service: a tower layer that asks gates before a
//! request goes in, and tells the client.
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
//! # What becomes of a request
//!
//! 1. The layer's [rules](Rule) say which gates are asked, for whom, at what cost. None of them:
//!    the request passes.
//! 2. All gates are asked in one atomic step. Who is denied does not reach the service, and is charged
//!    nothing; [`RateLimitLayer::wait`] holds him until his turn instead.
//! 3. The [`Decision`](crate::Decision) of the gate that bound and the
//!    [`AllDecision`](crate::AllDecision) are in the request's extensions. With the feature `axum` both are extractors.
//! 4. What the response says can change what is charged: [`Charge`].
//! 5. Each response says what is left: [`Headers`].
//!
//! # Rules from files
//!
//! With the feature `rules`, [`RateLimitLayer::ruled`] takes the gates from rules, also those that
//! [follow their files](crate::rules::Watched), and the descriptors of a request from the file or from a closure
//! ([`Descriptors`]). Clients read a rule's `name`, or else its path, as the name of the limit; handlers and
//! [answers](Refusal::ruling) find the [`Ruling`](crate::rules::Ruling). All else is as above, but that
//! [rules](Rule) of code have more: a [`Charge`] and a cost of their own, and a place beside another key in a Redis Cluster, over
//! which a domain has to say `charge: each`.
//!
//! # What is answered instead
//!
//! | when | answer | gRPC (feature `tonic`) |
//! | --- | --- | --- |
//! | denied | 429, Retry-After | `RESOURCE_EXHAUSTED`, RetryInfo |
//! | a rule's key is missing ([`MissingKey`]) | 400 | `INVALID_ARGUMENT` |
//! | the cost is above a limit, so that it can never pass | 413 | `OUT_OF_RANGE` |
//! | the limiter failed ([`OnError`]) | 503, Retry-After | `UNAVAILABLE`, RetryInfo |
//!
//! Bodies are `application/problem+json`, or text for who prefers that by Accept.
//! [`RateLimitLayer::answer`] answers otherwise.
//!
//! # A client that goes away
//!
//! The request's future is dropped. While it waits, its place is free at once and what was taken is given
//! back; once the service has it, it stays charged, unless [`Charge::if_abandoned`] says otherwise. What is to be given back is
//! sent by a task of its own, which ends with the answer or the limiter's deadline. In the moment in which Redis is asked, it
//! may have been charged already, and stays so.

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

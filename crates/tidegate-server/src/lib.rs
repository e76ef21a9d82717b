#![cfg_attr(docsrs, feature(doc_cfg))]
// The first definition of a label applies: here, links of the README lead to items.
//! [tidegate]: tidegate
//! [serve.md]: crate::Server
//! [admin.md]: crate::Admin
#![doc = include_str!("../README.md")]
//! # Layout
//!
//! - [`RateLimitService`] decides a request of the protocol by rules. It knows no server.
//! - [`Server`] serves it over gRPC and over HTTP, both by the same method.
//! - [`Admin`] has the settings of the admin port, for operators.
//! - [`proto`] has the messages.

mod admin;
mod console;
mod grpc;
mod http1;
mod http_api;
mod incoming;
mod json;
mod metrics;
pub mod proto;
mod readiness;
mod request;
mod response;
mod server;
mod service;
mod service_error;
mod tls;
mod unit;

pub use self::admin::{Admin, AdminTokens, AdminTokensError, Role};
pub use self::metrics::ServiceMetrics;
pub use self::server::{BoundServer, Server, ServerError};
pub use self::service::RateLimitService;
pub use self::service_error::ServiceError;
pub use self::tls::{Tls, TlsError};

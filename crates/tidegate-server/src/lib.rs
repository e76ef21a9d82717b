#![cfg_attr(docsrs, feature(doc_cfg))]
// The first definition of a label applies: here, links of the README lead to items.
//! [tidegate]: tidegate
//! [serve.md]: crate::Server
//! [console.md]: crate::Admin
#![doc = include_str!("../README.md")]
//! # Layout
//!
//! - [`RateLimitService`] decides a request of the protocol by rules. It knows no server.
//! - [`Server`] serves it over gRPC and over HTTP, both by the same method.
//! - [`Admin`] has the settings of the admin port, for operators.
//! - [`proto`] has the messages.

mod admin;
mod body;
mod connections;
mod for_clients;
mod grpc;
mod grpc_errors;
mod grpc_port;
mod grpc_streams;
mod http1;
mod http_api;
mod http_state;
mod json;
mod metrics;
mod origin;
mod permits;
mod problem;
pub mod proto;
mod random;
mod readiness;
mod recent_peeks;
mod request;
mod request_body;
mod response;
mod server;
mod server_error;
mod service;
mod service_error;
mod tls;
mod trace;
mod trace_context;
mod unit;
mod v1;

pub use self::admin::{Admin, AdminTokens, AdminTokensError, Role, pages};
pub use self::metrics::ServiceMetrics;
pub use self::response::HeaderNames;
pub use self::server::{BoundServer, Server};
pub use self::server_error::{PortName, ServerError};
pub use self::service::RateLimitService;
pub use self::service_error::ServiceError;
pub use self::tls::{Tls, TlsError};
pub use self::trace_context::TraceContext;

//! In front of HTTP and gRPC services (feature `tower`; `axum` and `tonic` add their parts).

#[cfg(feature = "client")]
mod client;
mod key;

pub use ipnet::IpNet;

#[cfg(feature = "client")]
pub use self::client::{Outgoing, OutgoingError, OutgoingFuture, OutgoingLayer};
pub use self::key::{ClientIp, Key, PeerAddr};

//! In front of HTTP and gRPC services (feature `tower`; `axum` and `tonic` add their parts).

mod key;

pub use ipnet::IpNet;

pub use self::key::{ClientIp, Key, PeerAddr};

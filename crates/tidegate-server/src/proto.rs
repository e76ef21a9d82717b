//! The messages and the service of Envoy's rate-limit protocol, version 3, generated from the files in `proto`.

/// The encoded descriptors of all messages and services here, for reflection and for JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

pub use self::generated::{envoy, xds};

// Generated code has neither documentation nor this project's lints.
#[allow(
    clippy::all,
    clippy::must_use_candidate,
    clippy::use_self,
    missing_docs,
    missing_debug_implementations,
    unnameable_types,
    unreachable_pub,
    rustdoc::all
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

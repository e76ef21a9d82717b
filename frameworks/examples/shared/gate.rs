//! The limit of the examples: two requests a minute for each address.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::{Gate, Limiter, Quota, Rate};

pub(super) type Failure = Box<dyn std::error::Error>;

const QUOTA: Quota = Quota::token_bucket(2, Rate::per_minute(2));

/// Returns the gate, and the address to listen on.
pub(super) fn from_environment() -> Result<(Gate, SocketAddr), Failure> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-frameworks")
        .deadline(Duration::from_secs(2))
        .build()?;
    Ok((limiter.gate("hello", QUOTA), std::env::var("LISTEN")?.parse()?))
}

//! The limit of the examples: two requests a minute for each client address. `PROXIES` lists the load balancers in front
//! of the service, whose `X-Forwarded-For` is read: networks or addresses, separated by commas.

use std::env::var;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate::{Limiter, Quota, Rate};
use tidegate_http::http::request::Parts;
use tidegate_http::http::{HeaderMap, Method, Request, Uri};
use tidegate_http::{ClientIp, Key, PeerAddr, RateLimitLayer};

pub(super) type Failure = Box<dyn std::error::Error>;

const QUOTA: Quota = Quota::token_bucket(2, Rate::per_minute(2));

/// Returns the limit, and the address to listen on.
pub(super) fn from_environment() -> Result<(RateLimitLayer, SocketAddr), Failure> {
    let limiter = Limiter::builder()
        .url(&var("TIDEGATE_REDIS_URL")?)
        .namespace("example-frameworks")
        // For the tests, which also run on busy machines. The default, 100 ms, suits a service.
        .deadline(Duration::from_secs(2))
        .build()?;
    let proxies = var("PROXIES").unwrap_or_default();
    let client = ClientIp::behind(proxies.split(',').filter(|proxy| !proxy.is_empty()))?;
    Ok((RateLimitLayer::new(limiter.gate("hello", QUOTA), Key::client_ip(client)), var("LISTEN")?.parse()?))
}

/// Returns the head of a request as the limit reads it. `peer` is the address of the connection.
pub(super) fn head(method: Method, uri: Uri, headers: HeaderMap, peer: Option<SocketAddr>) -> Parts {
    let (mut head, ()) = Request::new(()).into_parts();
    (head.method, head.uri, head.headers) = (method, uri, headers);
    if let Some(peer) = peer {
        head.extensions.insert(PeerAddr(peer));
    }
    head
}

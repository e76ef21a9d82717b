//! The limits of `axum.rs` and `actix.rs`: two tiers.

use std::time::Duration;

use tidegate::{Error, Limiter, Quota, Rate};
use tidegate_http::{GateRule, Key, RateLimitLayer};

const FREE: Quota = Quota::fixed_window(60, Duration::from_secs(3_600));
const PRO: Quota = Quota::token_bucket(600, Rate::per_minute(600));

pub(super) fn layer(redis_url: &str) -> Result<RateLimitLayer, Error> {
    let limiter = Limiter::builder()
        .url(redis_url)
        .namespace("example-tiers")
        .deadline(Duration::from_secs(2))
        .build()?;
    let free = GateRule::new(limiter.gate("free", FREE), Key::header("x-api-key"));
    let pro = GateRule::new(limiter.gate("pro", PRO), Key::header("x-api-key"));
    // A real service would look the key up: `RateLimitLayer::lookup`.
    let tiers = RateLimitLayer::choose(move |parts| {
        let key = parts.headers.get("x-api-key").map(|key| key.as_bytes());
        [if key.is_some_and(|key| key.starts_with(b"pro-")) { pro.clone() } else { free.clone() }]
    });
    Ok(tiers.skip(|parts| parts.uri.path() == "/health"))
}

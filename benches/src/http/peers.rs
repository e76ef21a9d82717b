//! The peers of the layer in front of axum, as each crate's documentation shows them, with all headers that they can
//! write.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};

use crate::Failure;

/// The header that holds the key.
pub(crate) const HEADER: &str = "x-api-key";

/// The burst, and the time in which one more unit becomes free.
pub(crate) type Limit = (u16, Duration);

pub(crate) fn tower_governor(app: Router, (burst, period): Limit) -> Result<Router, Failure> {
    use tower_governor::GovernorLayer;
    use tower_governor::governor::GovernorConfigBuilder;
    let mut builder = GovernorConfigBuilder::default();
    builder.period(period).burst_size(burst.into());
    let mut builder = builder.key_extractor(ByHeader).use_headers();
    Ok(app.layer(GovernorLayer::new(builder.finish().ok_or("tower_governor rejects the limit")?)))
}

pub(crate) async fn tower_rate_limit_redis(
    app: Router,
    (burst, period): Limit,
    redis: &str,
) -> Result<Router, Failure> {
    let client = redis_0_32::Client::open(redis)?;
    Ok(app.layer(
        tower_rate_limit_redis::RateLimitLayer::builder()
            .conn(client.get_multiplexed_async_connection().await?)
            .key_resolver(ByHeader)
            .capacity(burst)
            .emission_interval(period)
            .timeout(Duration::from_secs(5))
            .build(),
    ))
}

/// Uses a window as long as the bucket takes to refill.
pub(crate) async fn tower_rate_limiter(
    app: Router,
    (burst, period): Limit,
    redis: &str,
) -> Result<Router, Failure> {
    use tower_rate_limiter::{RateLimitLayer, RedisStore};
    let client = redis::Client::open(redis)?;
    let store = RedisStore::new(client.get_multiplexed_async_connection().await?);
    Ok(app.layer(
        RateLimitLayer::builder(ByHeader)
            .policy_name("http")
            .limit(burst.into())
            .window(period * burst.into())
            .with_key_encoder(|key| key.to_string())
            .with_store(store)
            .build()?,
    ))
}

/// Reads the key from the header. Each peer has its own trait for key extraction.
#[derive(Clone, Copy, Debug)]
struct ByHeader;

fn key_of<B>(request: &Request<B>) -> Option<String> {
    request.headers().get(HEADER)?.to_str().ok().map(ToOwned::to_owned)
}

impl tower_governor::key_extractor::KeyExtractor for ByHeader {
    type Key = String;

    fn extract<B>(&self, request: &Request<B>) -> Result<String, tower_governor::GovernorError> {
        key_of(request).ok_or(tower_governor::GovernorError::UnableToExtractKey)
    }
}

impl tower_rate_limit_redis::KeyResolver for ByHeader {
    type Key = String;
    type ErrorBody = Body;

    fn key<B>(&self, request: &Request<B>) -> Result<String, Response<Body>> {
        key_of(request).ok_or_else(|| Response::new(Body::empty()))
    }
}

impl tower_rate_limiter::KeyExtractor for ByHeader {
    type Key = String;

    fn extract<B>(&self, request: &Request<B>) -> Result<String, tower_rate_limiter::RateLimitError> {
        let missing = || tower_rate_limiter::RateLimitError::Key("missing".to_owned(), "no key".to_owned());
        key_of(request).ok_or_else(missing)
    }
}

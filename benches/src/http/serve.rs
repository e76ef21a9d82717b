//! The services: an axum application that replies "hello", limited as each crate's documentation shows.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use clap::ValueEnum;
use http::{Request, Response};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::Failure;

/// The header that holds the key.
pub(super) const HEADER: &str = "x-api-key";
const KEYS: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    Unlimited,
    Tidegate,
    TowerGovernor,
    TowerRateLimitRedis,
    TowerRateLimiter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// One of 100,000 keys per request. All requests are allowed.
    Unlike,
    /// A single key, which allows 1 request per second.
    Hot,
}

impl Service {
    pub(super) const ALL: [Self; 5] = [
        Self::Unlimited,
        Self::Tidegate,
        Self::TowerGovernor,
        Self::TowerRateLimitRedis,
        Self::TowerRateLimiter,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Tidegate => "tidegate",
            Self::TowerGovernor => "tower-governor",
            Self::TowerRateLimitRedis => "tower-rate-limit-redis",
            Self::TowerRateLimiter => "tower-rate-limiter",
        }
    }

    pub(super) fn note(self) -> &'static str {
        match self {
            Self::Unlimited => "no limit",
            Self::Tidegate => {
                "token bucket in Redis; headers of all families, a problem document with each 429"
            }
            Self::TowerGovernor => {
                "GCRA in this process only, nothing shared; no headers on allowed requests"
            }
            Self::TowerRateLimitRedis => "GCRA in Redis; no headers on allowed requests, no body with a 429",
            Self::TowerRateLimiter => "fixed window in Redis by its script; draft -11 headers",
        }
    }

    pub(super) fn is_peer(self) -> bool {
        self == Self::TowerGovernor || self.is_peer_on_redis()
    }

    pub(super) fn is_peer_on_redis(self) -> bool {
        matches!(self, Self::TowerRateLimitRedis | Self::TowerRateLimiter)
    }
}

impl Pattern {
    pub(super) const ALL: [Self; 2] = [Self::Unlike, Self::Hot];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unlike => "unlike",
            Self::Hot => "hot",
        }
    }

    pub(super) fn key(self) -> String {
        match self {
            Self::Unlike => format!("user-{}", fastrand::usize(..KEYS)),
            Self::Hot => "user".to_owned(),
        }
    }

    /// Returns the burst, and the time in which one more unit becomes free.
    fn limit(self) -> (u16, Duration) {
        match self {
            Self::Unlike => (60_000, Duration::from_millis(1)),
            Self::Hot => (100, Duration::from_secs(1)),
        }
    }
}

/// Prints its port, then serves until its standard input is closed.
pub(crate) async fn serve(service: Service, pattern: Pattern, redis: &str) -> Result<(), Failure> {
    let hello = Router::new().route("/", get(async || "hello"));
    let app = with_limit(hello, service, pattern, redis).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    tokio::select! {
        served = axum::serve(listener, app) => Ok(served?),
        _ = async { tokio::io::stdin().read_u8().await } => Ok(()),
    }
}

async fn with_limit(
    hello: Router,
    service: Service,
    pattern: Pattern,
    redis: &str,
) -> Result<Router, Failure> {
    let (burst, period) = pattern.limit();
    let app = match service {
        Service::Unlimited => hello,
        Service::Tidegate => {
            use tidegate::{Limiter, Quota, Rate};
            use tidegate_http::{Key, RateLimitLayer};
            let quota = Quota::token_bucket(burst.into(), Rate::new(1, period));
            hello.layer(RateLimitLayer::new(Limiter::open(redis)?.gate("http", quota), Key::header(HEADER)))
        }
        Service::TowerGovernor => {
            use tower_governor::GovernorLayer;
            use tower_governor::governor::GovernorConfigBuilder;
            let mut builder = GovernorConfigBuilder::default();
            builder.period(period).burst_size(burst.into());
            let config =
                builder.key_extractor(ByHeader).finish().ok_or("tower_governor rejects the limit")?;
            hello.layer(GovernorLayer::new(config))
        }
        Service::TowerRateLimitRedis => {
            let client = redis_0_32::Client::open(redis)?;
            hello.layer(
                tower_rate_limit_redis::RateLimitLayer::builder()
                    .conn(client.get_multiplexed_async_connection().await?)
                    .key_resolver(ByHeader)
                    .capacity(burst)
                    .emission_interval(period)
                    .timeout(Duration::from_secs(5))
                    .build(),
            )
        }
        Service::TowerRateLimiter => {
            use tower_rate_limiter::{RateLimitLayer, RedisStore};
            // The window is as long as the bucket takes to refill.
            let (limit, window) = match pattern {
                Pattern::Unlike => (u64::from(burst), Duration::from_secs(60)),
                Pattern::Hot => (100, Duration::from_secs(100)),
            };
            let client = redis::Client::open(redis)?;
            let store = RedisStore::new(client.get_multiplexed_async_connection().await?);
            hello.layer(
                RateLimitLayer::builder(ByHeader)
                    .policy_name("http")
                    .limit(limit)
                    .window(window)
                    .with_key_encoder(|key| key.to_string())
                    .with_store(store)
                    .build()?,
            )
        }
    };
    Ok(app)
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

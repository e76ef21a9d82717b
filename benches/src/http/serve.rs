//! The services: an application of axum or actix-web that replies "hello", limited as each crate's documentation
//! shows.

mod actix;

use std::io;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use clap::ValueEnum;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use super::peers;
pub(super) use super::peers::HEADER;
use crate::Failure;

const KEYS: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    Unlimited,
    Tidegate,
    TowerGovernor,
    TowerRateLimitRedis,
    TowerRateLimiter,
    ActixUnlimited,
    ActixTidegate,
    ActixGovernor,
    ActixExtensibleMemory,
    ActixExtensibleRedis,
    ActixLimitation,
}

/// The framework of a service. Its services are compared with each other only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framework {
    Axum,
    Actix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// One of 100,000 keys per request. All requests are allowed.
    Unlike,
    /// A single key, which allows 1 request per second.
    Hot,
}

impl Service {
    pub(super) const ALL: [Self; 11] = [
        Self::Unlimited,
        Self::Tidegate,
        Self::TowerGovernor,
        Self::TowerRateLimitRedis,
        Self::TowerRateLimiter,
        Self::ActixUnlimited,
        Self::ActixTidegate,
        Self::ActixGovernor,
        Self::ActixExtensibleMemory,
        Self::ActixExtensibleRedis,
        Self::ActixLimitation,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Tidegate => "tidegate",
            Self::TowerGovernor => "tower-governor",
            Self::TowerRateLimitRedis => "tower-rate-limit-redis",
            Self::TowerRateLimiter => "tower-rate-limiter",
            Self::ActixUnlimited => "actix-unlimited",
            Self::ActixTidegate => "actix-tidegate",
            Self::ActixGovernor => "actix-governor",
            Self::ActixExtensibleMemory => "actix-extensible-memory",
            Self::ActixExtensibleRedis => "actix-extensible-redis",
            Self::ActixLimitation => "actix-limitation",
        }
    }

    pub(super) fn note(self) -> &'static str {
        match self {
            Self::Unlimited | Self::ActixUnlimited => "no limit",
            Self::Tidegate | Self::ActixTidegate => {
                "token bucket in Redis; headers of all families, a problem document with each 429"
            }
            Self::TowerGovernor => "GCRA in this process only, nothing shared; X-RateLimit headers",
            Self::ActixGovernor => {
                "GCRA in this process only, nothing shared; no headers on allowed requests"
            }
            Self::TowerRateLimitRedis => "GCRA in Redis; no headers on allowed requests, no body with a 429",
            Self::TowerRateLimiter => "fixed window in Redis by its script; draft -11 headers",
            Self::ActixExtensibleMemory => {
                "fixed window in this process only, nothing shared; denials count; X-RateLimit headers"
            }
            Self::ActixExtensibleRedis => {
                "fixed window in Redis by a transaction; denials count; X-RateLimit headers"
            }
            Self::ActixLimitation => {
                "fixed window in Redis by a transaction, a connection for each request; denials count; no headers"
            }
        }
    }

    pub(super) fn framework(self) -> Framework {
        match self {
            Self::Unlimited
            | Self::Tidegate
            | Self::TowerGovernor
            | Self::TowerRateLimitRedis
            | Self::TowerRateLimiter => Framework::Axum,
            Self::ActixUnlimited
            | Self::ActixTidegate
            | Self::ActixGovernor
            | Self::ActixExtensibleMemory
            | Self::ActixExtensibleRedis
            | Self::ActixLimitation => Framework::Actix,
        }
    }

    pub(super) fn is_unlimited(self) -> bool {
        self == self.framework().unlimited()
    }

    pub(super) fn is_peer(self) -> bool {
        !self.is_unlimited() && self != self.framework().tidegate()
    }

    pub(super) fn is_peer_on_redis(self) -> bool {
        matches!(
            self,
            Self::TowerRateLimitRedis
                | Self::TowerRateLimiter
                | Self::ActixExtensibleRedis
                | Self::ActixLimitation
        )
    }
}

impl Framework {
    pub(super) const ALL: [Self; 2] = [Self::Axum, Self::Actix];

    pub(super) fn unlimited(self) -> Service {
        match self {
            Self::Axum => Service::Unlimited,
            Self::Actix => Service::ActixUnlimited,
        }
    }

    pub(super) fn tidegate(self) -> Service {
        match self {
            Self::Axum => Service::Tidegate,
            Self::Actix => Service::ActixTidegate,
        }
    }

    /// Returns the beginning of the names of ratios.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Axum => "http",
            Self::Actix => "http_actix",
        }
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

    /// Returns the limit of a window, and the window. The window is as long as the bucket takes to refill.
    fn window(self) -> (u16, Duration) {
        let (burst, period) = self.limit();
        (burst, period * burst.into())
    }
}

/// Prints its port, then serves until its standard input is closed.
pub(crate) async fn serve(service: Service, pattern: Pattern, redis: &str) -> Result<(), Failure> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    match service.framework() {
        Framework::Axum => {
            let hello = Router::new().route("/", get(async || "hello"));
            let app = with_limit(hello, service, pattern, redis).await?;
            until_closed(port, axum::serve(TcpListener::from_std(listener)?, app).into_future()).await
        }
        // The back-end in memory of a peer spawns a local task.
        Framework::Actix => {
            let serving =
                async { until_closed(port, actix::start(listener, service, pattern, redis).await?).await };
            LocalSet::new().run_until(serving).await
        }
    }
}

async fn until_closed(port: u16, serving: impl Future<Output = io::Result<()>>) -> Result<(), Failure> {
    println!("{port}");
    tokio::select! {
        served = serving => Ok(served?),
        _ = async { tokio::io::stdin().read_u8().await } => Ok(()),
    }
}

fn tidegate(pattern: Pattern, redis: &str) -> Result<tidegate_http::RateLimitLayer, Failure> {
    use tidegate::{Limiter, Quota, Rate};
    use tidegate_http::{Key, RateLimitLayer};
    let (burst, period) = pattern.limit();
    let quota = Quota::token_bucket(burst.into(), Rate::new(1, period));
    Ok(RateLimitLayer::new(Limiter::open(redis)?.gate("http", quota), Key::header(HEADER)))
}

async fn with_limit(
    hello: Router,
    service: Service,
    pattern: Pattern,
    redis: &str,
) -> Result<Router, Failure> {
    let limit = pattern.limit();
    let app = match service {
        Service::Tidegate => hello.layer(tidegate(pattern, redis)?),
        Service::TowerGovernor => peers::tower_governor(hello, limit)?,
        Service::TowerRateLimitRedis => peers::tower_rate_limit_redis(hello, limit, redis).await?,
        Service::TowerRateLimiter => peers::tower_rate_limiter(hello, limit, redis).await?,
        _ => hello,
    };
    Ok(app)
}

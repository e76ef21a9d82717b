//! tower-rate-limit-redis: its tower service around a service that responds at once.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt};
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use super::{DEADLINE, Info, Kind, Subject};
use crate::Failure;
use crate::case::Case;

pub(crate) struct TowerRateLimitRedis {
    layer: RateLimitLayer<ByHeader>,
}

/// The request's header names the key, as in its example.
#[derive(Clone)]
struct ByHeader;

const HEADER: &str = "x-api-key";

impl KeyResolver for ByHeader {
    type Key = String;
    type ErrorBody = ();

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<()>> {
        let key = request.headers().get(HEADER).and_then(|key| key.to_str().ok());
        key.map(ToOwned::to_owned).ok_or_else(|| Response::new(()))
    }
}

fn respond(_: Request<()>) -> Ready<Result<Response<()>, Infallible>> {
    ready(Ok(Response::new(())))
}

impl Subject for TowerRateLimitRedis {
    const INFO: Info = Info {
        name: "tower-rate-limit-redis",
        title: "tower-rate-limit-redis",
        note: "GCRA in milliseconds; capacity is a u16, so the hot key changes every 59,000 checks",
        kind: Kind::Peer,
        max_capacity: u16::MAX as u64,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limit = case.limit();
        let client = redis_0_32::Client::open(url)?;
        let layer = RateLimitLayer::builder()
            .conn(client.get_multiplexed_async_connection().await?)
            .key_resolver(ByHeader)
            .capacity(u16::try_from(limit.capacity).unwrap_or(u16::MAX))
            .emission_interval(Duration::from_secs(limit.refill_s))
            .timeout(DEADLINE)
            .build();
        Ok(Self { layer })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let request = Request::builder().header(HEADER, key).body(())?;
        let service = self.layer.layer(tower::service_fn(respond));
        match service.oneshot(request).await?.status() {
            StatusCode::OK => Ok(true),
            StatusCode::TOO_MANY_REQUESTS => Ok(false),
            other => Err(format!("the service responded with {other}").into()),
        }
    }
}

//! tower-redis-cell: its tower service around a service that responds at once. Redis needs the module.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::Duration;

use redis::aio::ConnectionManager;
use tower::{Layer, ServiceExt};
use tower_redis_cell::redis_cell::Policy;
use tower_redis_cell::{Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

use super::{Info, Kind, Subject};
use crate::Failure;
use crate::case::Case;

pub(crate) const NEEDS: &str =
    "the server has no CL.THROTTLE: set TIDEGATE_REDIS_CELL to the path of the module libredis_cell.so";

pub(crate) struct TowerRedisCell {
    layer: RateLimitLayer<ByKey, String, Outcome, Outcome, ConnectionManager>,
}

#[derive(Clone)]
struct ByKey(Policy);

impl ProvideRule<String> for ByKey {
    fn provide<'a>(&self, key: &'a String) -> ProvideRuleResult<'a> {
        Ok(Some(Rule::new(key.as_str(), self.0)))
    }
}

enum Outcome {
    Allowed,
    Denied,
    Failed(String),
}

fn respond(_: String) -> Ready<Result<Outcome, Infallible>> {
    ready(Ok(Outcome::Allowed))
}

fn on_error(error: Error<'_>, _: &String) -> Outcome {
    match error {
        Error::RateLimit(_) => Outcome::Denied,
        error => Outcome::Failed(error.to_string()),
    }
}

impl Subject for TowerRedisCell {
    const INFO: Info = Info {
        name: "tower-redis-cell",
        title: "tower-redis-cell with the module redis-cell",
        note: "GCRA in a native module that has to be loaded into Redis",
        kind: Kind::Peer,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limit = case.limit();
        let policy = Policy::from_tokens_per_period(1, Duration::from_secs(limit.refill_s))
            .max_burst(limit.capacity as usize);
        let connection = redis::Client::open(url)?.get_connection_manager().await?;
        Ok(Self { layer: RateLimitLayer::new(RateLimitConfig::new(ByKey(policy), on_error), connection) })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let service = self.layer.layer(tower::service_fn(respond));
        match service.oneshot(key.to_owned()).await? {
            Outcome::Allowed => Ok(true),
            Outcome::Denied => Ok(false),
            Outcome::Failed(error) => Err(error.into()),
        }
    }
}

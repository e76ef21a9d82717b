//! tower-redis-cell: its tower service around one that answers at once. Redis needs the module.

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
    layer: RateLimitLayer<ByKey, String, Answer, Answer, ConnectionManager>,
}

#[derive(Clone)]
struct ByKey(Policy);

impl ProvideRule<String> for ByKey {
    fn provide<'a>(&self, key: &'a String) -> ProvideRuleResult<'a> {
        Ok(Some(Rule::new(key.as_str(), self.0)))
    }
}

enum Answer {
    Passed,
    Denied,
    Failed(String),
}

fn answer(_: String) -> Ready<Result<Answer, Infallible>> {
    ready(Ok(Answer::Passed))
}

fn on_error(error: Error<'_>, _: &String) -> Answer {
    match error {
        Error::RateLimit(_) => Answer::Denied,
        error => Answer::Failed(error.to_string()),
    }
}

impl Subject for TowerRedisCell {
    const INFO: Info = Info {
        name: "tower-redis-cell",
        title: "tower-redis-cell with the module redis-cell",
        note: "GCRA in a native module that has to be loaded into Redis",
        kind: Kind::Peer,
        most: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limit = case.limit();
        let policy = Policy::from_tokens_per_period(1, Duration::from_secs(limit.refill_s))
            .max_burst(limit.capacity as usize);
        let connection = redis::Client::open(url)?.get_connection_manager().await?;
        Ok(Self { layer: RateLimitLayer::new(RateLimitConfig::new(ByKey(policy), on_error), connection) })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let service = self.layer.layer(tower::service_fn(answer));
        match service.oneshot(key.to_owned()).await? {
            Answer::Passed => Ok(true),
            Answer::Denied => Ok(false),
            Answer::Failed(error) => Err(error.into()),
        }
    }
}

//! throttle-kit: its limiter on its Redis backend.

use std::time::Duration;

use throttle_kit::{Quota, RateLimiter, RedisBackend};

use super::{Info, Kind, Subject};
use crate::Failure;
use crate::case::Case;

pub(crate) struct ThrottleKit {
    limiter: RateLimiter<RedisBackend>,
}

impl Subject for ThrottleKit {
    const INFO: Info = Info {
        name: "throttle-kit",
        title: "throttle-kit",
        note: "GCRA in milliseconds by the client's clock; fails open",
        kind: Kind::Peer,
        max_capacity: u32::MAX as u64,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limit = case.limit();
        let quota = Quota::from_parts(Duration::from_secs(limit.refill_s), u32::try_from(limit.capacity)?);
        Ok(Self { limiter: RateLimiter::new(quota, RedisBackend::connect(url).await?) })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let result = self.limiter.check(key).await;
        // `remaining` contains the used units, so it is 0 only if Redis did not decide.
        if result.allowed && result.remaining == 0 {
            return Err("Redis failed, and it let the check pass".into());
        }
        Ok(result.allowed)
    }
}

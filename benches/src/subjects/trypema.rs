//! trypema: the absolute strategy of its Redis provider.

use std::sync::Arc;

use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::{Info, Kind, RUN, Subject};
use crate::Failure;
use crate::case::Case;

pub(crate) const NEEDS: &str = "it needs Redis 7.2 or Valkey: set TIDEGATE_BENCH_VALKEY to a server's path";

/// The window that its README and its own benchmarks use.
const WINDOW_S: u64 = 60;

pub(crate) struct Trypema {
    provider: Arc<RedisRateLimiterProvider>,
    rate: RateLimit,
}

impl Subject for Trypema {
    const INFO: Info = Info {
        name: "trypema",
        title: "trypema, Redis provider",
        note: "sliding window of a minute in buckets of 10 ms; no colons in keys; may overshoot",
        kind: Kind::Peer,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let connection = redis::Client::open(url)?.get_connection_manager().await?;
        let provider = RedisRateLimiterProvider::builder(connection)
            .prefix(RedisKey::try_from(RUN.clone())?)
            .window_size(WindowSize::minutes(1)?)
            .bucket_size(BucketSize::milliseconds(10)?)
            .build()?;
        Ok(Self { provider, rate: rate(case)? })
    }

    fn key(case: Case, number: usize) -> String {
        format!("{}-user-{number}", case.family())
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let key = RedisKey::try_from(key.to_owned())?;
        let decision = self.provider.absolute().inc(&key, &self.rate, 1).await?;
        Ok(matches!(decision, RateLimitDecision::Allowed))
    }
}

/// Returns the rate that admits as much per window as the bucket holds.
pub(super) fn rate(case: Case) -> Result<RateLimit, Failure> {
    Ok(RateLimit::per_second(case.limit().capacity as f64 / WINDOW_S as f64)?)
}

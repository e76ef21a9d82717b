//! trypema: the absolute strategy of its hybrid provider, in the cases decided in process.

use std::sync::Arc;

use tokio::runtime::Handle;
use trypema::hybrid::{HybridRateLimiterProvider, SyncInterval};
use trypema::redis::RedisKey;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::{Info, Kind, Local, LocalDecision, RUN};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Hybrid {
    provider: Arc<HybridRateLimiterProvider>,
    rate: RateLimit,
    runtime: Handle,
}

impl Local for Hybrid {
    const INFO: Info = Info {
        name: "trypema-hybrid",
        title: "trypema, hybrid provider",
        note: "counts locally and reports to Redis every 10 ms, so several processes overshoot; \
               sliding window of a minute",
        kind: Kind::Peer,
        max_capacity: u64::MAX,
    };

    type Key = RedisKey;

    fn open(url: &str, case: Case, runtime: &Handle) -> Result<Self, Failure> {
        let client = redis::Client::open(url)?;
        // The builder spawns tasks.
        let _entered = runtime.enter();
        let provider = HybridRateLimiterProvider::builder(runtime.block_on(client.get_connection_manager())?)
            .prefix(RedisKey::try_from(format!("{}-{}", *RUN, case.name()))?)
            .window_size(WindowSize::minutes(1)?)
            .bucket_size(BucketSize::milliseconds(10)?)
            .sync_interval(SyncInterval::milliseconds(10)?)
            .build()?;
        Ok(Self { provider, rate: super::trypema::rate(case)?, runtime: runtime.clone() })
    }

    fn key(name: &str) -> Result<RedisKey, Failure> {
        Ok(RedisKey::try_from(name.replace(':', "-"))?)
    }

    #[inline]
    fn check(&self, key: &RedisKey) -> Result<LocalDecision, Failure> {
        let limiter = self.provider.absolute();
        let (decision, fell_back) = match limiter.try_inc(key.as_key_ref(), 1)? {
            Some(decision) => (decision, false),
            None => (self.runtime.block_on(limiter.inc(key, &self.rate, 1))?, true),
        };
        Ok(LocalDecision { allowed: matches!(decision, RateLimitDecision::Allowed), fell_back })
    }
}

//! By hand, with a connection pool, as in most services: a checkout per check.

use deadpool_redis::{Config, Pool, PoolConfig, Runtime};

use super::{FLAT, Info, Kind, Subject, flat_args};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Pooled {
    pool: Pool,
    limit: (u64, f64),
}

impl Subject for Pooled {
    const INFO: Info = Info {
        name: "pool",
        title: "by hand: pool of 16, checkout and script per check",
        note: "flat script on a hash, floating point, no validation",
        kind: Kind::ByHand,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let mut config = Config::from_url(url);
        config.pool = Some(PoolConfig::new(16));
        Ok(Self { pool: config.create_pool(Some(Runtime::Tokio1))?, limit: flat_args(case) })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let mut connection = self.pool.get().await?;
        let (capacity, rate) = self.limit;
        let (allowed, _tokens): (bool, u64) =
            FLAT.key(key).arg(capacity).arg(rate).invoke_async(&mut connection).await?;
        Ok(allowed)
    }
}

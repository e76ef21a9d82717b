//! By hand, with one connection that all tasks share: a script call per check.

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::{DEADLINE, FLAT, Info, Kind, Subject, flat_args};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Multiplexed {
    connection: MultiplexedConnection,
    limit: (u64, f64),
}

impl Subject for Multiplexed {
    const INFO: Info = Info {
        name: "multiplexed",
        title: "by hand: one multiplexed connection, script per check",
        note: "flat script on a hash, floating point, no validation",
        kind: Kind::ByHand,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let client = redis::Client::open(url)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { connection, limit: flat_args(case) })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let mut connection = self.connection.clone();
        let (capacity, rate) = self.limit;
        let (allowed, _tokens): (bool, u64) =
            FLAT.key(key).arg(capacity).arg(rate).invoke_async(&mut connection).await?;
        Ok(allowed)
    }
}

//! actix-extensible-rate-limit: its Redis back-end, without its middleware.

use std::time::Duration;

use actix_extensible_rate_limit::backend::redis::RedisBackend;
use actix_extensible_rate_limit::backend::{Backend, SimpleInput};
use redis_0_26::aio::ConnectionManager;

use super::{Info, Kind, Subject};
use crate::Failure;
use crate::case::Case;

pub(crate) struct ActixExtensible {
    backend: RedisBackend,
    max_requests: u64,
}

impl Subject for ActixExtensible {
    const INFO: Info = Info {
        name: "actix-extensible-rate-limit",
        title: "actix-extensible-rate-limit",
        note: "fixed window of an hour; denials count; a transaction per check on a connection manager",
        kind: Kind::Peer,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let connection = ConnectionManager::new(redis_0_26::Client::open(url)?).await?;
        let backend = RedisBackend::builder(connection).build();
        Ok(Self { backend, max_requests: case.limit().capacity })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let input = SimpleInput {
            interval: Duration::from_secs(3600),
            max_requests: self.max_requests,
            key: key.to_owned(),
        };
        let (decision, _output, _rollback) = self.backend.request(input).await?;
        Ok(decision.is_allowed())
    }
}

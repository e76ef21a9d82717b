//! Calls to the Redis of a limiter.

use std::sync::Arc;

use crate::connection::{CallTarget, Connection};
use crate::error::Error;
use crate::key::HashTag;
use crate::pipeline::Pipeline;

/// The pipeline of a limiter with a Redis.
#[derive(Clone, Debug)]
pub(super) struct RedisAccess {
    pub(super) pipeline: Arc<Pipeline>,
}

/// A key's row in the reply of `inspect.lua`.
pub(super) struct StoredRow {
    pub(super) now_us: u64,
    /// -1: never expires; -2: does not exist.
    pub(super) ttl_ms: i64,
    pub(super) content: String,
}

impl RedisAccess {
    /// Fails if the limiter has no Redis.
    pub(super) fn new(pipeline: Arc<Pipeline>) -> Result<Self, Error> {
        let access = Self { pipeline };
        access.connection().map(drop)?;
        Ok(access)
    }

    pub(super) fn namespace(&self) -> &str {
        self.pipeline.keyspace().namespace()
    }

    pub(super) fn connection(&self) -> Result<&Connection, Error> {
        let none = || Error::config("the limiter has no Redis to inspect");
        self.pipeline.store().connection().ok_or_else(none)
    }

    pub(super) fn call_target(&self, hash_tag: HashTag) -> CallTarget {
        CallTarget {
            hash_tag: Some(hash_tag),
            deadline: self.pipeline.operator_deadline(),
            is_repeatable: true,
        }
    }
}

pub(super) fn unexpected_reply() -> Error {
    Error::unavailable("unexpected reply to a tidegate script: check that the server is a Redis")
}

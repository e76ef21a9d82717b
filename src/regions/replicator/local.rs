//! The calls to this region's own Redis.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join4;
use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::connection::{CallTarget, Connection, Deadline};
use crate::error::Error;
use crate::key::HashTag;
use crate::regions::reference::escrow::Escrow;
use crate::regions::reference::{Batch, Cursor};
use crate::regions::script::{Applied, Call, Keys, applied, cursor_of};

/// No check waits for these calls.
const DEADLINE: Duration = Duration::from_secs(2);

pub(super) struct Local {
    connection: Arc<Connection>,
    pub(super) keys: Keys,
}

/// The state of a peer in this region before a read.
pub(super) struct KnownPeer {
    pub(super) cursor: Option<Cursor>,
    /// The server's time, in µs since 1970.
    pub(super) now_us: u64,
    /// Up to which such time this region knows all of the peer.
    pub(super) heard_us: Option<u64>,
    /// What it has in common with its peers, as it says.
    pub(super) common: Option<String>,
    /// When the calls began.
    pub(super) at: Instant,
}

impl Local {
    pub(super) fn new(connection: Arc<Connection>, keys: Keys) -> Self {
        Self { connection, keys }
    }

    pub(super) async fn before(&self, peer: &str) -> Result<KnownPeer, Error> {
        let at = Instant::now();
        let key = self.keys.cursor(peer);
        // Not GET and HGET: a nil is no plausible reply, and the connection would be given up.
        let mut cursor = redis::cmd("MGET");
        let [mut heard, mut ack] = [redis::cmd("HMGET"), redis::cmd("HMGET")];
        let (cursor, heard) = (cursor.arg(&key), heard.arg(&self.keys.heard).arg(peer));
        let ack = ack.arg(&self.keys.acks).arg(peer);
        let time = redis::cmd("TIME");
        let (cursor, heard, ack, time) = try_join4(
            self.call::<Vec<Option<String>>>(cursor),
            self.call::<Vec<Option<u64>>>(heard),
            self.call::<Vec<Option<String>>>(ack),
            self.call(&time),
        )
        .await?;
        let cursor = match cursor.into_iter().next().flatten() {
            None => None,
            Some(text) => Some(cursor_of(&text).ok_or_else(|| {
                Error::unavailable(format!(
                    "corrupt cursor in {key}: not written by tidegate. Find the other writer, then delete the key"
                ))
            })?),
        };
        let heard_us = heard.into_iter().next().flatten();
        let ack = ack.into_iter().next().flatten();
        let common = ack.and_then(|ack| Some(ack.splitn(3, ' ').nth(2)?.to_owned()));
        Ok(KnownPeer { cursor, now_us: time_us(time), heard_us, common, at })
    }

    /// Applies a part of a peer's stream, unless another replicator has moved the cursor. After a lost reply, the
    /// cursor tells whether it was applied.
    pub(super) async fn apply(&self, peer: &str, batch: &Batch) -> Result<Applied, Error> {
        let reply = self.run(&self.keys.apply(peer, batch, Escrow::FRESH_US), false).await?;
        applied(&reply).ok_or_else(|| unexpected("apply"))
    }

    /// Moves changes into the stream. Returns how many are left. A call that runs twice moves more of them.
    pub(super) async fn flush(
        &self,
        most: usize,
        retention: Duration,
        max_entries: usize,
    ) -> Result<u64, Error> {
        let retention_us = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
        let call = self.keys.flush(most, retention_us, max_entries, fastrand::u64(..));
        match self.run(&call, true).await? {
            Value::Array(values) => match values[..] {
                [Value::Int(_), Value::Int(left)] => Ok(left.unsigned_abs()),
                _ => Err(unexpected("flush")),
            },
            _ => Err(unexpected("flush")),
        }
    }

    /// Returns how many changes are in the outbox.
    pub(super) async fn waiting(&self) -> Result<u64, Error> {
        self.call(redis::cmd("HLEN").arg(&self.keys.outbox)).await
    }

    async fn run(&self, call: &Call, is_repeatable: bool) -> Result<Value, Error> {
        let args = |command: &mut Cmd| {
            command.arg(call.keys.len()).arg(&call.keys).arg(&call.args);
        };
        self.connection
            .run(call.script, args, target(is_repeatable))
            .await
            .map_err(|error| self.located(error))
    }

    async fn call<T: redis::FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        let reply = self.connection.call(command, target(true)).await.map_err(|error| self.located(error))?;
        redis::from_redis_value(reply).map_err(|_| unexpected("command"))
    }

    fn located(&self, error: Error) -> Error {
        error.at(self.connection.address())
    }
}

/// Returns the time of a reply to TIME, in µs since 1970.
pub(super) fn time_us((seconds, micros): (u64, u64)) -> u64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

pub(super) fn unexpected(what: &str) -> Error {
    Error::unavailable(format!("unexpected reply to a {what} of the replicator: is this a Redis?"))
}

fn target(is_repeatable: bool) -> CallTarget {
    // Of all keys of replication.
    let hash_tag = Some(HashTag::default());
    CallTarget { hash_tag, deadline: Deadline::new(DEADLINE), is_repeatable }
}

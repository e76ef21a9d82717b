//! The replication of gates, as the Redis of one region shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue, Value};

use super::Inspector;
use crate::error::Error;
use crate::key::HashTag;
use crate::regions::Replication;
use crate::regions::script::{Keys, position_of};

/// The replication of gates, as the Redis of one region shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionFigures {
    /// Changes that wait for the next flush. If they stay, no process flushes.
    pub waiting: u64,
    /// Entries that are kept for peers.
    pub entries: u64,
    /// Units above limit and debt, which do not count.
    pub forgiven: u64,
    /// Units of windows before the previous one, which do not count.
    pub dropped: u64,
    /// Units that name a window after the next one: clocks are apart by more than a window.
    pub far: u64,
    /// The other regions, by their names.
    pub peers: Vec<PeerFigures>,
}

/// Another region, as the Redis of this one shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerFigures {
    /// The name of the region.
    pub name: String,
    /// For how long this region has not known all that the peer had sent. `None` if it was never heard of.
    pub silent_for: Option<Duration>,
    /// How far the peer is behind with what this region has sent. `None` if it has read nothing of the stream.
    pub behind: Option<Duration>,
}

/// For example `0 changes wait, 8 entries are kept; units forgiven: 0, dropped: 0, of a clock too far ahead: 0`.
impl fmt::Display for RegionFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiting, entries, forgiven, dropped, far, .. } = self;
        write!(f, "{waiting} changes wait, {entries} entries are kept; units forgiven: {forgiven}, ")?;
        write!(f, "dropped: {dropped}, of a clock too far ahead: {far}")
    }
}

impl PeerFigures {
    /// Returns whether limiters with the default [`Replication::cut_off_after`] count the region as cut off.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.silent_for.is_none_or(|silent| silent >= Replication::default().cut_off_after)
    }
}

/// # Regions
impl Inspector {
    /// Returns the replication of gates, as this Redis shows it. `None` if nothing is replicated. Needs the permissions
    /// `+hlen`, `+xlen` and `+xrevrange`.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer, or if its user lacks a permission: the message names it.
    pub async fn regions(&self) -> Result<Option<RegionFigures>, Error> {
        let keys = Keys::new(&self.0.pipeline.keyspace().regions());
        let on = |name: &str, key: &str| redis::cmd(name).arg(key).to_owned();
        let mut newest = on("XREVRANGE", &keys.stream);
        newest.arg(&["+", "-", "COUNT", "1"]);
        let commands = [
            redis::cmd("TIME"),
            on("HLEN", &keys.outbox),
            on("XLEN", &keys.stream),
            on("HGETALL", &keys.counts),
            on("HGETALL", &keys.heard),
            on("HGETALL", &keys.acks),
            newest,
        ];
        let mut replies = try_join_all(commands.iter().map(|command| self.call(command))).await?.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let (seconds, micros): (u64, u64) = parsed(next())?;
        let now_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let (waiting, entries) = (parsed(next())?, parsed(next())?);
        let counts: BTreeMap<String, u64> = parsed(next())?;
        let heard: BTreeMap<String, u64> = parsed(next())?;
        let acks: BTreeMap<String, String> = parsed(next())?;
        let newest: Vec<(String, Value)> = parsed(next())?;
        let newest_ms = newest.first().and_then(|(id, _)| id.split('-').next()?.parse().ok()).unwrap_or(0);
        if waiting == 0 && entries == 0 && heard.is_empty() {
            return Ok(None);
        }
        let peer = |name: &String| PeerFigures {
            name: name.clone(),
            silent_for: heard.get(name).map(|heard| Duration::from_micros(now_us.saturating_sub(*heard))),
            behind: acks.get(name).and_then(|text| {
                let (_, (read_ms, _)) = position_of(text)?;
                Some(Duration::from_millis(u64::saturating_sub(newest_ms, read_ms)))
            }),
        };
        let names: BTreeSet<&String> = heard.keys().chain(acks.keys()).collect();
        let count = |fate: &str| counts.get(fate).copied().unwrap_or(0);
        Ok(Some(RegionFigures {
            waiting,
            entries,
            forgiven: count("forgiven"),
            dropped: count("dropped"),
            far: count("far"),
            peers: names.into_iter().map(peer).collect(),
        }))
    }

    async fn call(&self, command: &Cmd) -> Result<Value, Error> {
        self.0.connection()?.call(command, self.0.call_target(HashTag::default())).await
    }
}

fn parsed<T: FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply)
        .map_err(|_| Error::unavailable("unexpected reply about regions: another program writes these keys"))
}

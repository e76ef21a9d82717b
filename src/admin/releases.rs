//! Releases of permits that a process holds for its clients, and that other processes receive.

use std::time::Duration;

use redis::Value;

use super::{StoreAccess, unexpected_reply};
use crate::connection::CallTarget;
use crate::error::Error;
use crate::key::HashTag;
use crate::limiter::Limiter;
use crate::script;

/// The most releases that wait for a process.
const MAX_RECORDS: usize = 16_384;

/// How long an inbox stays open after its process has collected the last time: no shorter than a client's permit lives.
const OPEN: Duration = Duration::from_secs(3_600);

/// The releases that wait for a process, which holds [permits](crate::Permit) for its clients: any process of the
/// namespace records them, and the holder collects them.
///
/// The process and each permit have a random number. A client that knows both may release the permit, at any process.
/// Redis keeps the records of a process in a sorted set, `tidegate:1:releases/PROCESS`: at most 16,384, and until an
/// hour after the process has collected the last time. Each call has the [deadline of
/// checks](crate::Builder::deadline). Failure policies and the circuit breaker do not apply.
///
/// ```no_run
/// # async fn example(limiter: tidegate::Limiter) -> Result<(), tidegate::Error> {
/// use tidegate::admin::ReleaseInbox;
///
/// let mut inbox = ReleaseInbox::new(&limiter, 0xa1b2_c3d4)?; // the process that holds permit 17
/// assert!(inbox.collect().await?.is_empty());
/// // In another process:
/// assert!(ReleaseInbox::new(&limiter, 0xa1b2_c3d4)?.record(17).await?);
///
/// assert_eq!(inbox.collect().await?, [17_u128]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ReleaseInbox {
    access: StoreAccess,
    key: String,
    collected_us: i64,
}

impl ReleaseInbox {
    /// Makes the inbox of the process with this number. Opens nothing.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the limiter has no Redis: it is in memory or a stub.
    pub fn new(limiter: &Limiter, process: u32) -> Result<Self, Error> {
        let access = StoreAccess::new(limiter.pipeline.clone())?;
        let key = access.pipeline.keyspace().releases(process);
        Ok(Self { access, key, collected_us: 0 })
    }

    /// Records that a permit was released, any number of times. Returns false if the process does not collect: it has
    /// ended, or never held a permit.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer, or if 16,384 records wait.
    pub async fn record(&self, permit: u128) -> Result<bool, Error> {
        let id = format!("{permit:032x}");
        match self.call(&["record", &id, &MAX_RECORDS.to_string()]).await? {
            Value::Int(recorded) => Ok(recorded == 1),
            Value::BulkString(failed) if failed == b"FULL" => Err(Error::unavailable(format!(
                "{MAX_RECORDS} releases wait for the process that holds the permit: repeat the release"
            ))),
            _ => Err(unexpected_reply()),
        }
    }

    /// Returns the permits whose releases were recorded, and keeps the inbox open for an hour. Returns each permit
    /// once or twice, and also numbers that never were a permit.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer. The next call returns what this one has missed.
    pub async fn collect(&mut self) -> Result<Vec<u128>, Error> {
        let (last, max) = (self.collected_us.to_string(), MAX_RECORDS.to_string());
        let reply = self.call(&["collect", &last, &max, &OPEN.as_millis().to_string()]).await?;
        let Value::Array(mut members) = reply else { return Err(unexpected_reply()) };
        let Some(Value::Int(now_us)) = members.pop() else { return Err(unexpected_reply()) };
        self.collected_us = now_us;
        Ok(members.iter().filter_map(permit).collect())
    }

    async fn call(&self, args: &[&str]) -> Result<Value, Error> {
        let hash_tag = Some(HashTag::default());
        let deadline = self.access.pipeline.deadline_of(None);
        let to = CallTarget { hash_tag, deadline, is_repeatable: true };
        let args = |command: &mut redis::Cmd| {
            command.arg(1).arg(&self.key).arg(args);
        };
        self.access.connection()?.run(&script::RELEASES, args, to).await
    }
}

fn permit(member: &Value) -> Option<u128> {
    let Value::BulkString(id) = member else { return None };
    u128::from_str_radix(std::str::from_utf8(id).ok()?, 16).ok()
}

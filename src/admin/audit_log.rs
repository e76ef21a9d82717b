//! The log of the changes that operators make, in a stream of the namespace.

use redis::{Cmd, Value};

use super::Inspector;
use super::access::unexpected_reply;
use super::audit::{AuditEntry, AuditRecord, entry};
use crate::error::Error;
use crate::key::HashTag;

/// The entries that the stream keeps; Redis keeps up to some 100 more, since it removes them in blocks.
const MAX_ENTRIES: u64 = 10_000;
/// # Audit log
impl Inspector {
    /// Adds a change to the audit log of the namespace: the stream `tidegate:1:audit`, which keeps the newest 10,000
    /// entries. Needs the rights to `XADD` and `XREVRANGE`, which a limiter does not need.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer, or rejected the entry. If the connection is lost, the call is
    /// sent again, so an entry can be there twice.
    pub async fn record_audit(&self, record: &AuditRecord) -> Result<(), Error> {
        let mut command = redis::cmd("XADD");
        command.arg(self.0.pipeline.keyspace().audit()).arg("MAXLEN").arg("~").arg(MAX_ENTRIES).arg("*");
        for (name, text) in record.fields() {
            command.arg(name).arg(text);
        }
        match self.call_audit(&command).await? {
            Value::BulkString(_) | Value::SimpleString(_) => Ok(()),
            _ => Err(unexpected_reply()),
        }
    }

    /// Returns the newest entries of the audit log, at most `count`, the newest first. Skips entries that tidegate did
    /// not write.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer; [`Error::is_corrupt_state`] if the key is no stream.
    pub async fn audit_log(&self, count: usize) -> Result<Vec<AuditEntry>, Error> {
        let mut command = redis::cmd("XREVRANGE");
        // COUNT 0 would mean all.
        command.arg(self.0.pipeline.keyspace().audit()).arg("+").arg("-").arg("COUNT").arg(count.max(1));
        match self.call_audit(&command).await? {
            Value::Array(entries) => Ok(entries.into_iter().take(count).filter_map(entry).collect()),
            _ => Err(unexpected_reply()),
        }
    }

    async fn call_audit(&self, command: &Cmd) -> Result<Value, Error> {
        self.0.connection()?.call(command, self.0.call_target(HashTag::default())).await
    }
}

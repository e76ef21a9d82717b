//! An entry of the audit log, and its fields in the stream.

use redis::{Cmd, Value};

use super::{Inspector, unexpected_reply};
use crate::error::Error;
use crate::key::HashTag;

/// The maximum length of one text of an entry in bytes. Longer ones are cut.
const MAX_TEXT_BYTES: usize = 1_024;

/// A change that an operator made, or tried to make. Texts longer than 1,024 bytes are cut when they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRecord {
    /// Who: the name of the operator's token or account.
    pub operator: String,
    /// The operator's role.
    pub role: String,
    /// What was done, such as `block`.
    pub verb: String,
    /// The gate.
    pub gate: String,
    /// The key in a [stored form](super::Inspector::stored_forms); empty for a change of a whole gate.
    pub key: String,
    /// The values of the change, such as the duration of a block.
    pub detail: String,
    /// Why, in the operator's words.
    pub reason: String,
    /// The outcome.
    pub result: String,
}

/// An entry of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditEntry {
    /// The time of the Redis server when it wrote the entry, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The change.
    pub record: AuditRecord,
}

impl AuditRecord {
    /// Returns the fields of an entry in the stream.
    pub(super) fn fields(&self) -> [(&'static str, &str); 8] {
        [
            ("operator", cut(&self.operator)),
            ("role", cut(&self.role)),
            ("verb", cut(&self.verb)),
            ("gate", cut(&self.gate)),
            ("key", cut(&self.key)),
            ("detail", cut(&self.detail)),
            ("reason", cut(&self.reason)),
            ("result", cut(&self.result)),
        ]
    }

    /// Returns the text of a field; `None` for a field that this version does not know.
    fn field_mut(&mut self, name: &[u8]) -> Option<&mut String> {
        Some(match name {
            b"operator" => &mut self.operator,
            b"role" => &mut self.role,
            b"verb" => &mut self.verb,
            b"gate" => &mut self.gate,
            b"key" => &mut self.key,
            b"detail" => &mut self.detail,
            b"reason" => &mut self.reason,
            b"result" => &mut self.result,
            _ => return None,
        })
    }
}

pub(super) fn entry(entry: Value) -> Option<AuditEntry> {
    let Value::Array(parts) = entry else { return None };
    let Ok([Value::BulkString(id), Value::Array(fields)]) = <[Value; 2]>::try_from(parts) else {
        return None;
    };
    let (unix_ms, _) = std::str::from_utf8(&id).ok()?.split_once('-')?;
    let mut record = AuditRecord::default();
    let mut fields = fields.into_iter();
    while let (Some(Value::BulkString(name)), Some(Value::BulkString(text))) = (fields.next(), fields.next())
    {
        if let Some(field) = record.field_mut(&name) {
            *field = String::from_utf8_lossy(&text).into_owned();
        }
    }
    let is_ours = !record.verb.is_empty();
    is_ours.then_some(AuditEntry { unix_ms: unix_ms.parse().ok()?, record })
}

/// Returns the start of a text, with at most the maximum of bytes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

// The log of the changes that operators make, in a stream of the namespace.

/// The entries that the stream keeps; Redis keeps up to some 100 more, since it removes them in blocks.
const MAX_ENTRIES: u64 = 10_000;
/// # Audit log
impl Inspector {
    /// Adds a change to the audit log of the namespace: the stream `tidegate:1:audit`, which keeps the newest 10,000
    /// entries. Needs the right to `XADD`, which a limiter does not need; [`audit_log`](Self::audit_log) needs `XREVRANGE`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn entry_is_parsed_and_foreign_ones_are_skipped() {
        let fields = ["verb", "block", "gate", "login", "colour", "red", "reason", "<b>"].map(bulk).to_vec();
        let parsed = entry(Value::Array(vec![bulk("1767225600000-3"), Value::Array(fields)])).unwrap();
        let record = AuditRecord {
            verb: "block".to_owned(),
            gate: "login".to_owned(),
            reason: "<b>".to_owned(),
            ..AuditRecord::default()
        };
        assert_eq!(parsed, AuditEntry { unix_ms: 1_767_225_600_000, record });
        for foreign in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![bulk("1-0")]),
            Value::Array(vec![bulk("1-0"), Value::Nil]),
            Value::Array(vec![bulk("1-0"), Value::Array(vec![bulk("a"), bulk("b")])]),
            Value::Array(vec![bulk("x-0"), Value::Array(vec![bulk("verb"), bulk("block")])]),
            Value::Array(vec![bulk("1"), Value::Array(vec![bulk("verb"), bulk("block")])]),
            Value::Array(vec![bulk("1-0"), Value::Array(vec![bulk("verb")])]),
        ] {
            assert_eq!(entry(foreign.clone()), None, "{foreign:?}");
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(cut(&"x".repeat(1_024)).len(), 1_024);
        assert_eq!(cut(&"x".repeat(1_025)).len(), 1_024);
        assert_eq!(cut(&"é".repeat(1_000)).len(), 1_024);
        assert_eq!(cut(&format!("x{}", "é".repeat(1_000))).len(), 1_023);
    }
}

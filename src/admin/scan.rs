//! Finds keys with SCAN, one page at a time, node by node.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::name::{Name, NotState};
use super::{StoreAccess, unexpected_reply};
use crate::error::Error;
use crate::key::HashTag;
use crate::script;

/// The maximum calls to one node: at 1,000 keys per call, as many keys as a Redis can hold.
const MAX_CALLS: u64 = 1 << 22;
/// The maximum duration of all calls to one node. The pauses of the caller between the pages do not count.
const MAX_DURATION: Duration = Duration::from_secs(3_600);

/// A scan of the keys that match a pattern, node by node. [`Inspector::scan`](super::Inspector::scan)
/// and [`Inspector::scan_key`](super::Inspector::scan_key) return it; [`next`](Self::next) returns the keys.
#[derive(Debug)]
pub struct Scan {
    access: StoreAccess,
    pattern: String,
    /// The nodes that are not completely scanned; `None` before the first page.
    nodes: Option<Vec<ScanNode>>,
}

/// A node that is not completely scanned, addressed by one of its hash tags.
#[derive(Debug)]
pub(super) struct ScanNode {
    pub(super) hash_tag: HashTag,
    pub(super) address: (String, u16),
    progress: ScanProgress,
}

/// Ends a scan that the server never ends.
#[derive(Debug)]
struct ScanProgress {
    cursor: u64,
    /// A cursor of an earlier call: the last at a power of two. So a cycle of any length is detected (Brent).
    earlier: u64,
    calls: u64,
    /// The time that the calls took.
    spent: Duration,
}

/// A key under the namespace that is not a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherKey {
    /// The whole Redis key: any bytes, of any length.
    pub redis_key: Vec<u8>,
    /// The kind of the key.
    pub kind: NotState,
}

/// The keys found by one SCAN call; may be empty. Redis can return a key twice while it resizes its tables. A
/// key that exists during the whole scan is returned at least once.
#[derive(Debug, Default)]
pub struct Page {
    /// The keys of states, in no order.
    pub names: Vec<Name>,
    /// The states that have [holds](super::Inspector::holds), in no order. Such a state may not exist.
    pub with_holds: Vec<Name>,
    /// The states whose keys have [counted denials](super::Inspector::denials), in no order. Such a state may not
    /// exist.
    pub with_denials: Vec<Name>,
    /// Each other key under the namespace.
    pub others: Vec<OtherKey>,
}

impl Scan {
    pub(super) fn new(access: &StoreAccess, pattern: String) -> Self {
        Self { access: access.clone(), pattern, nodes: None }
    }

    /// Returns the next page, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer, or if the cluster changed during the scan: then
    /// start a new scan. Also if the server never ends the scan: it repeats a cursor, or a node needs more than
    /// 2^22 calls, or an hour for its calls. After another error, the next call repeats the failed one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, the next call reads the same page again.
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        let Some(keys) = self.next_keys().await? else { return Ok(None) };
        let mut page = Page::default();
        for key in keys {
            match Name::parse(self.access.namespace(), &key) {
                Ok(name) => page.names.push(name),
                Err(kind) => {
                    if let Some(name) = Name::of_holds(self.access.namespace(), &key) {
                        page.with_holds.push(name);
                    } else if let Some(name) = Name::of_denials(self.access.namespace(), &key) {
                        page.with_denials.push(name);
                    } else {
                        page.others.push(OtherKey { redis_key: key, kind });
                    }
                }
            }
        }
        Ok(Some(page))
    }

    /// Returns the Redis keys of the next page, unparsed, as [`next`](Self::next) does.
    pub(super) async fn next_keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        if let Some(memory) = self.access.memory() {
            // The only page has all keys, also those that the pattern does not match.
            let is_first = self.nodes.replace(Vec::new()).is_none();
            return Ok(is_first.then(|| memory.redis_keys().into_iter().map(String::into_bytes).collect()));
        }
        if self.nodes.is_none() {
            self.nodes = Some(nodes(&self.access, HashTag::all()).await?);
        }
        let Some(node) = self.nodes.as_mut().and_then(|nodes| nodes.last_mut()) else { return Ok(None) };
        let connection = self.access.connection()?;
        let start = Instant::now();
        let reply = connection
            .scan(node.progress.cursor, &self.pattern, self.access.call_target(node.hash_tag))
            .await?;
        let elapsed = start.elapsed();
        let (cursor, keys) = parse(reply).ok_or_else(unexpected_reply)?;
        if connection.node_of(node.hash_tag).is_none_or(|address| address != node.address) {
            return Err(Error::unavailable("the cluster changed during the scan: repeat the scan"));
        }
        node.progress.advance(cursor, elapsed)?;
        if cursor == 0 {
            self.nodes.as_mut().and_then(Vec::pop);
        }
        Ok(Some(keys))
    }
}

impl ScanProgress {
    const fn new() -> Self {
        Self { cursor: 0, earlier: 0, calls: 0, spent: Duration::ZERO }
    }

    /// Continues at the cursor that the server returned after this time.
    fn advance(&mut self, cursor: u64, elapsed: Duration) -> Result<(), Error> {
        let fix = "check that the server is a Redis, and the proxy before it";
        if cursor != 0 && cursor == self.earlier {
            return Err(Error::unavailable(format!(
                "SCAN repeats the cursor {cursor} and never ends: {fix}"
            )));
        }
        self.calls += 1;
        self.spent += elapsed;
        if self.calls > MAX_CALLS || self.spent > MAX_DURATION {
            let calls = self.calls;
            return Err(Error::unavailable(format!("SCAN has not ended after {calls} calls: {fix}")));
        }
        if self.calls.is_power_of_two() {
            self.earlier = cursor;
        }
        self.cursor = cursor;
        Ok(())
    }
}

/// Returns each node of these hash tags once. Calls a script with a key of each hash tag, so that a cluster node replies
/// with a redirect if it does not serve the tag. With all hash tags, this also detects a cluster that is configured as a
/// single server.
pub(super) async fn nodes(
    access: &StoreAccess,
    hash_tags: impl Iterator<Item = HashTag>,
) -> Result<Vec<ScanNode>, Error> {
    let (connection, keyspace) = (access.connection()?, access.pipeline.keyspace());
    let mut nodes: Vec<ScanNode> = Vec::new();
    for hash_tag in hash_tags {
        let key = keyspace.probe_key(hash_tag);
        let args = |command: &mut Cmd| {
            command.arg(1).arg(&key).arg(0);
        };
        connection.run(&script::INSPECT, args, access.call_target(hash_tag)).await?;
        let address = connection.node_of(hash_tag).ok_or_else(unexpected_reply)?;
        if !nodes.iter().any(|node| node.address == address) {
            nodes.push(ScanNode { hash_tag, address, progress: ScanProgress::new() });
        }
    }
    Ok(nodes)
}

/// Parses a reply of SCAN into the next cursor and the keys.
fn parse(reply: Value) -> Option<(u64, Vec<Vec<u8>>)> {
    let Value::Array(reply) = reply else { return None };
    let [Value::BulkString(cursor), Value::Array(keys)] = <[Value; 2]>::try_from(reply).ok()? else {
        return None;
    };
    let cursor = std::str::from_utf8(&cursor).ok()?.parse().ok()?;
    let keys = keys.into_iter().map(|key| match key {
        Value::BulkString(key) => Some(key),
        _ => None,
    });
    Some((cursor, keys.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the calls after which the scan ends with an error, and the error.
    fn calls_of(cursors: impl Iterator<Item = u64>, elapsed: Duration) -> Option<(u64, String)> {
        let mut progress = ScanProgress::new();
        for (calls, cursor) in (1..).zip(cursors) {
            if let Err(error) = progress.advance(cursor, elapsed) {
                return Some((calls, error.to_string()));
            }
        }
        None
    }

    #[test]
    fn scan_of_a_server_that_repeats_cursors_ends() {
        for length in [1, 2, 3, 10, 1_000] {
            // The cycle starts after some calls without repetition.
            let cursors = (1..=10).chain((11..11 + length).cycle());
            let (calls, error) = calls_of(cursors, Duration::ZERO).unwrap();
            assert!(calls <= 3 * (10 + length), "{length}: {calls}");
            assert!(error.contains("SCAN repeats the cursor "), "{error}");
        }
    }

    #[test]
    fn scan_of_a_server_that_never_returns_cursor_0_ends_by_calls_and_by_time() {
        let (calls, error) = calls_of(1.., Duration::ZERO).unwrap();
        assert_eq!(calls, MAX_CALLS + 1, "{error}");
        let (calls, error) = calls_of(1.., Duration::from_secs(1)).unwrap();
        assert_eq!(calls, MAX_DURATION.as_secs() + 1);
        assert!(error.contains("SCAN has not ended after 3601 calls"), "{error}");
    }

    #[test]
    fn scan_of_a_redis_never_repeats_a_cursor() {
        // Redis increments the reversed bits of the cursor.
        let cursors = (1..1_u64 << 16).map(|step| step.reverse_bits() >> 48);
        assert_eq!(calls_of(cursors.chain([0]), Duration::ZERO), None);
    }
}

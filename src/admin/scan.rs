//! Finds keys with SCAN, one page at a time, node by node.

use redis::{Cmd, Value};

use super::access::{RedisAccess, unexpected_reply};
use super::name::{Name, NotState};
use crate::error::Error;
use crate::key::HashTag;
use crate::script;

/// A scan of the keys that match a pattern, node by node. [`Inspector::scan`](super::Inspector::scan)
/// and [`Inspector::scan_key`](super::Inspector::scan_key) return it; [`next`](Self::next) returns the keys.
#[derive(Debug)]
pub struct Scan {
    access: RedisAccess,
    pattern: String,
    /// The nodes that are not completely scanned; `None` before the first page.
    nodes: Option<Vec<ScanNode>>,
}

/// A node that is not completely scanned, addressed by one of its hash tags.
#[derive(Debug)]
struct ScanNode {
    hash_tag: HashTag,
    address: (String, u16),
    cursor: u64,
}

/// The keys found by one SCAN call; may be empty. Redis can return a key twice while it resizes its tables. A
/// key that exists during the whole scan is returned at least once.
#[derive(Debug, Default)]
pub struct Page {
    /// The keys of states, in no order.
    pub names: Vec<Name>,
    /// The kind of each other key under the namespace.
    pub others: Vec<NotState>,
}

impl Scan {
    pub(super) fn new(access: &RedisAccess, pattern: String) -> Self {
        Self { access: access.clone(), pattern, nodes: None }
    }

    /// Returns the next page, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer, or if the cluster changed during the scan: then
    /// start a new scan. After another error, the next call repeats the failed one.
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
                Err(other) => page.others.push(other),
            }
        }
        Ok(Some(page))
    }

    /// Returns the Redis keys of the next page, unparsed, as [`next`](Self::next) does.
    pub(super) async fn next_keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        if self.nodes.is_none() {
            self.nodes = Some(nodes(&self.access).await?);
        }
        let Some(node) = self.nodes.as_mut().and_then(|nodes| nodes.last_mut()) else { return Ok(None) };
        let connection = self.access.connection()?;
        let reply =
            connection.scan(node.cursor, &self.pattern, self.access.call_target(node.hash_tag)).await?;
        let (cursor, keys) = parse(reply).ok_or_else(unexpected_reply)?;
        if connection.node_of(node.hash_tag).is_none_or(|address| address != node.address) {
            return Err(Error::unavailable("the cluster changed during the scan: repeat the scan"));
        }
        node.cursor = cursor;
        if cursor == 0 {
            self.nodes.as_mut().and_then(Vec::pop);
        }
        Ok(Some(keys))
    }
}

/// Returns each node once. Calls a script with a key of each hash tag, so that a cluster node replies with a
/// redirect if it does not serve the tag. This also detects a cluster that is configured as a single server.
async fn nodes(access: &RedisAccess) -> Result<Vec<ScanNode>, Error> {
    let (connection, keyspace) = (access.connection()?, access.pipeline.keyspace());
    let mut nodes: Vec<ScanNode> = Vec::new();
    for hash_tag in HashTag::all() {
        let key = keyspace.probe_key(hash_tag);
        let args = |command: &mut Cmd| {
            command.arg(1).arg(&key).arg(0);
        };
        connection.run(&script::INSPECT, args, access.call_target(hash_tag)).await?;
        let address = connection.node_of(hash_tag).ok_or_else(unexpected_reply)?;
        if !nodes.iter().any(|node| node.address == address) {
            nodes.push(ScanNode { hash_tag, address, cursor: 0 });
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

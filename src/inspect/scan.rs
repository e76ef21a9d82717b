//! Keys by SCAN, a page at a time, node by node.

use redis::{Cmd, Value};

use super::{Inspector, Name, NotState, unexpected};
use crate::error::Error;
use crate::key::Place;
use crate::script;

/// Goes through the keys that match a pattern.
#[derive(Debug)]
pub struct Scan {
    inspector: Inspector,
    pattern: String,
    /// `None` before it has begun.
    nodes: Option<Vec<Node>>,
}

/// A node that is still to be gone through, by a place that it serves.
#[derive(Debug)]
struct Node {
    place: Place,
    address: (String, u16),
    cursor: u64,
}

/// What SCAN found with one call, which may be nothing. Redis may tell a key twice while it resizes its
/// tables; one that is there from beginning to end is told.
#[derive(Debug, Default)]
pub struct Page {
    pub names: Vec<Name>,
    pub others: Vec<NotState>,
}

impl Scan {
    pub(super) fn new(inspector: &Inspector, pattern: String) -> Self {
        Self { inspector: inspector.clone(), pattern, nodes: None }
    }

    /// The next page; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        if self.nodes.is_none() {
            self.nodes = Some(nodes(&self.inspector).await?);
        }
        let Some(node) = self.nodes.as_mut().and_then(|nodes| nodes.last_mut()) else { return Ok(None) };
        let connection = self.inspector.connection()?;
        let reply = connection.scan(node.cursor, &self.pattern, self.inspector.to(node.place)).await?;
        let (cursor, keys) = parse(reply).ok_or_else(unexpected)?;
        if connection.node_of(node.place).is_none_or(|address| address != node.address) {
            return Err(Error::unavailable("the cluster changed while it was gone through: begin again"));
        }
        node.cursor = cursor;
        if cursor == 0 {
            self.nodes.as_mut().and_then(Vec::pop);
        }
        let mut page = Page::default();
        for key in keys {
            match Name::parse(self.inspector.namespace(), &key) {
                Ok(name) => page.names.push(name),
                Err(other) => page.others.push(other),
            }
        }
        Ok(Some(page))
    }
}

/// One for each node that serves a place. Each place is asked for with a key of its own, so that a
/// cluster says whose it is, also where this was taken for a single server.
async fn nodes(inspector: &Inspector) -> Result<Vec<Node>, Error> {
    let (connection, keyspace) = (inspector.connection()?, inspector.core.keyspace());
    let mut nodes: Vec<Node> = Vec::new();
    for place in Place::all() {
        let key = keyspace.somewhere(place);
        let look = |command: &mut Cmd| {
            command.arg(1).arg(&key).arg(0);
        };
        connection.run(&script::INSPECT, look, inspector.to(place)).await?;
        let address = connection.node_of(place).ok_or_else(unexpected)?;
        if !nodes.iter().any(|node| node.address == address) {
            nodes.push(Node { place, address, cursor: 0 });
        }
    }
    Ok(nodes)
}

/// A cursor, and keys.
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

//! The stream of a peer: one read of it.

use std::collections::HashMap;
use std::time::Duration;

use redis::{FromRedisValue, ServerErrorKind, Value};

use super::ReplicatorSettings;
use super::flusher::MAX_CHANGES;
use super::local::{time_us, unexpected};
use crate::connection::{DedicatedConnection, words};
use crate::error::Error;
use crate::regions::reference::{Cursor, Entry, Id};
use crate::regions::script::text::{epoch_of, id, id_text};
use crate::regions::script::{Keys, Peer, position_text};

/// The time after which a read without an entry returns.
pub const BEAT: Duration = Duration::from_millis(500);

/// The longest read. A silent peer may have become unreachable without an error.
const DEADLINE: Duration = Duration::from_secs(2);

/// The most entries of a read: bounds its memory, and how much of it is lost to a faster reader.
const MAX_ENTRIES: usize = 128;

/// The longest field. Keys and names are much shorter.
const MAX_FIELD_BYTES: usize = 4_096;

pub(super) struct Stream {
    connection: DedicatedConnection,
    /// The keys of the peer, which are named as those of this region.
    keys: Keys,
    /// How keys of replicated gates begin.
    states: String,
    regions: u64,
    /// The name of this region, and what it has in common with its peers.
    reader: String,
    common: String,
    /// The most entries of the next read. A read that failed may have been too large for the network and the deadline.
    most: usize,
}

/// The result of a read.
pub(super) struct Reading {
    pub(super) epoch: u64,
    pub(super) info: Option<Info>,
    /// Entries after the cursor, and how many changes of each were skipped.
    pub(super) entries: Vec<(Entry, u64)>,
    /// Whether these are all entries that the stream then had.
    pub(super) is_complete: bool,
    /// The time of the peer after the read, in µs since 1970.
    pub(super) peer_us: u64,
    /// Why the peer refused the acknowledgement.
    pub(super) refused: Option<Error>,
}

/// The figures of a stream.
pub(super) struct Info {
    /// The ID of the newest entry there has been.
    pub(super) end: Id,
    /// The ID of the oldest entry.
    pub(super) first: Option<Id>,
    pub(super) length: u64,
    /// The number of entries there have been. `None` if the server does not count them.
    pub(super) added: Option<u64>,
}

/// An entry: its ID, and its fields with amounts.
type RawEntry = (String, Vec<(Vec<u8>, Vec<u8>)>);

impl Stream {
    pub(super) fn new(connection: DedicatedConnection, settings: &ReplicatorSettings) -> Self {
        Self {
            connection,
            keys: Keys::new(&settings.prefix),
            states: settings.states.clone(),
            regions: settings.peers.len() as u64 + 1,
            reader: settings.region.clone(),
            common: settings.common(),
            most: MAX_ENTRIES,
        }
    }

    /// Reads entries after a cursor, from the beginning without one. Waits for the next one if there is none. One
    /// connection runs the commands in this order, so that the end of the stream is not later than its entries.
    pub(super) async fn read(&mut self, cursor: Option<&Cursor>, with_info: bool) -> Result<Reading, Error> {
        let most = self.most;
        self.most = (most / 2).max(1);
        let reading = self.read_at_most(most, cursor, with_info).await?;
        self.most = (most * 2).min(MAX_ENTRIES);
        Ok(reading)
    }

    async fn read_at_most(
        &mut self,
        most: usize,
        cursor: Option<&Cursor>,
        with_info: bool,
    ) -> Result<Reading, Error> {
        let mut commands = redis::pipe();
        if let Some(cursor) = cursor {
            let ack = format!("{} {}", position_text(cursor.position), self.common);
            commands.cmd("HSET").arg(&self.keys.acks).arg(&self.reader).arg(ack);
        }
        commands.cmd("GET").arg(&self.keys.epoch);
        if with_info {
            commands.cmd("XINFO").arg("STREAM").arg(&self.keys.stream);
        }
        let after = cursor.map_or((0, 0), |cursor| cursor.position.1);
        commands.cmd("XREAD").arg("COUNT").arg(most).arg("BLOCK").arg(BEAT.as_millis() as u64);
        commands.arg("STREAMS").arg(&self.keys.stream).arg(id_text(after));
        commands.cmd("TIME");
        let mut replies = self.connection.send(&commands, DEADLINE).await?.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let refused = if cursor.is_some() { value::<Value>(next()).err() } else { None };
        let epoch: Option<String> = value(next())?;
        let info = if with_info { Some(info(next())?) } else { None };
        let found: Option<Vec<(Vec<u8>, Vec<RawEntry>)>> = value(next())?;
        let peer_us = time_us(value(next())?);
        let Some(epoch) = epoch else {
            return Err(Error::unavailable(
                "the peer has no stream yet: does a replicator of that region run?",
            ));
        };
        let epoch = epoch_of(&epoch).ok_or_else(|| unexpected("read"))?;
        let raw = found.into_iter().flatten().flat_map(|(_, entries)| entries);
        let entries: Vec<_> =
            raw.map(|entry| self.entry(entry)).collect::<Option<_>>().ok_or_else(|| unexpected("read"))?;
        let is_complete = entries.len() < most;
        Ok(Reading { epoch, info, entries, is_complete, peer_us, refused })
    }

    /// Reads an entry. Skips what tidegate does not write.
    fn entry(&self, (id, raw): RawEntry) -> Option<(Entry, u64)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
        let count = raw.len();
        let is_short = |(field, _): &(Vec<u8>, Vec<u8>)| field.len() <= MAX_FIELD_BYTES;
        let pairs: Vec<(String, String)> = match count {
            0..=MAX_CHANGES => {
                let pairs = raw.into_iter().filter(is_short);
                pairs.filter_map(|(field, amount)| Some((text(field)?, text(amount)?))).collect()
            }
            _ => Vec::new(),
        };
        let peer = Peer { regions: self.regions, states: &self.states };
        let (entry, _) = peer.entry(&id, &pairs)?;
        let skipped = (count - entry.changes.len()) as u64;
        Some((entry, skipped))
    }
}

fn info(reply: Value) -> Result<Info, Error> {
    if let Value::ServerError(error) = &reply
        && error.kind() == Some(ServerErrorKind::ResponseError)
        && error.details().is_some_and(|details| details.starts_with("no such key"))
    {
        return Ok(Info { end: (0, 0), first: None, length: 0, added: None });
    }
    let mut fields: HashMap<String, Value> = value(reply)?;
    let mut field = |name: &str| fields.remove(name).unwrap_or(Value::Nil);
    let end: String = value(field("last-generated-id"))?;
    let first: Option<(String, Value)> = value(field("first-entry"))?;
    let first = match first {
        Some((first, _)) => Some(id(&first).ok_or_else(|| unexpected("read"))?),
        None => None,
    };
    let end = id(&end).ok_or_else(|| unexpected("read"))?;
    Ok(Info { end, first, length: value(field("length"))?, added: value(field("entries-added"))? })
}

/// Reads a reply. An error of the server is one of the read.
fn value<T: FromRedisValue>(reply: Value) -> Result<T, Error> {
    let reply = reply.extract_error().map_err(|error| Error::from_script(&words(&error)))?;
    redis::from_redis_value(reply).map_err(|_| unexpected("read"))
}

//! One region twice: on a Redis, and in the model.

use std::collections::{BTreeMap, HashMap};

use redis::{Connection, Pipeline, Value};
use tidegate::algorithm::Kind;
use tidegate::reference::Record;
use tidegate::regions::reference::gossip::{Counts, Gossip, Key};
use tidegate::regions::reference::{
    Batch, Change, Cursor, Entry, Id, Mode, Region, TakeGroup, Taken, Verb, Windows,
};
use tidegate::regions::script::{Applied, Call, Keys, Peer, Write, all, applied, cursor_of, taken};
use tidegate_testkit::Server;

use crate::support::script::{Left, connect, left};

/// How the keys of states begin.
const STATES: &str = "state:";
pub const KEYS: [&str; 2] = ["state:a", "state:b"];
/// The share of each key.
pub const SHARES: [&str; 2] = ["share:a", "share:b"];

pub type Checked<T = ()> = Result<T, String>;

pub struct Pair {
    pub server: Server,
    connection: Connection,
    digests: HashMap<&'static str, String>,
    keys: Keys,
    pub region: Region,
    /// The clock of this region, in µs since 1970.
    pub now: u64,
    pub regions: u64,
    /// Whether the stream has no epoch yet.
    is_new: bool,
    pub seen: Seen,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub admitted: u64,
    pub denied: u64,
    /// Admitted while a peer was cut off.
    pub shared: u64,
    pub applied: u64,
    /// Batches that came again, too late, or out of order.
    pub fenced: u64,
    pub forgiven: u64,
    pub dropped: u64,
    pub far: u64,
}

/// An entry of a stream: its ID, and its fields with amounts.
type Stored = (String, Vec<(String, String)>);

/// The state of a Redis, for a failover.
pub type Dump = Vec<(String, Vec<u8>, i64)>;

impl Pair {
    pub fn new(name: u16) -> Self {
        let server = Server::with_shiftable_clock().unwrap();
        Self {
            connection: connect(server.url()),
            server,
            digests: HashMap::new(),
            keys: Keys::new("tidegate:1:regions"),
            region: Region::new(name, 1, 1),
            now: 0,
            regions: 2,
            is_new: true,
            seen: Seen::default(),
        }
    }

    /// Loads the scripts after a change to the text of each.
    pub fn load(&mut self, change: impl Fn(&str) -> String) {
        let connection = &mut self.connection;
        let mut load = |text: &str| -> String {
            redis::cmd("SCRIPT").arg("LOAD").arg(change(text)).query(connection).unwrap()
        };
        self.digests = all().into_iter().map(|script| (script.name, load(script.text))).collect();
    }

    /// Returns the epoch that a caller proposes. Only that of a new stream counts.
    fn epoch(&mut self) -> u64 {
        let epoch = self.region.replication.epoch;
        if std::mem::take(&mut self.is_new) { epoch } else { !epoch }
    }

    pub fn peer(&self) -> Peer<'static> {
        Peer { regions: self.regions, states: STATES }
    }

    /// Empties both.
    pub fn wipe(&mut self, epoch: u64) {
        let fresh_us = self.region.fresh_us;
        self.region = Region { fresh_us, ..Region::new(self.region.name, self.regions, epoch) };
        self.is_new = true;
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }

    pub fn set_clock(&mut self, now: u64) {
        self.now = now;
        self.server.freeze_clock(now);
    }

    fn call(&mut self, call: &Call) -> Value {
        let digest = &self.digests[call.script.name];
        let mut command = redis::cmd("EVALSHA");
        command.arg(digest).arg(call.keys.len()).arg(&call.keys).arg(&call.args);
        command.query(&mut self.connection).unwrap_or_else(|error| Value::SimpleString(error.to_string()))
    }

    pub fn take(&mut self, groups: &[TakeGroup<'_>], cut_us: Option<u64>) -> Checked<Vec<Vec<Taken>>> {
        let mut call = self.keys.take(groups, cut_us);
        call.args.push((self.now + 1).to_string());
        let reply = self.call(&call);
        let found =
            taken(groups, cut_us.is_some(), &reply).ok_or_else(|| format!("the take replies {reply:?}"))?;
        let mut all = Vec::new();
        for (group, found) in groups.iter().zip(found) {
            let expected = self.region.take_all(group, cut_us, self.now);
            let found = found?;
            let same = |taken: &[Taken]| -> Vec<Taken> {
                taken.iter().map(|taken| self.comparable(taken)).collect()
            };
            differ("the take", &same(&expected), &same(&found))?;
            let k = expected[0].k;
            self.seen.admitted += k;
            self.seen.denied += group.n - k;
            self.seen.shared += if cut_us.is_some() { k } else { 0 };
            all.push(found);
        }
        Ok(all)
    }

    /// A block that has ended equals none.
    fn comparable(&self, taken: &Taken) -> Taken {
        let mut taken = taken.clone();
        if taken.before.blocked_until_us <= self.now {
            taken.before.blocked_until_us = 0;
        }
        taken
    }

    pub fn write(&mut self, gate: &Gossip, key: &str, write: Write) -> Checked {
        let epoch = self.epoch();
        let reply = self.call(&self.keys.write(gate, key, write, epoch));
        let now = Value::Int(self.now as i64);
        let is_done = matches!(&reply, Value::Array(values) if values.first() == Some(&now));
        let (mode, now) = (Mode::Gossip(*gate), self.now);
        match write {
            Write::Penalize(units) => self.region.penalize(&mode, key, units, now),
            Write::Refund(units, stamp) => self.region.refund(&mode, key, units, stamp, now),
            Write::Block(us) => self.region.block(&mode, key, us, now),
            Write::Reset => self.region.reset(&mode, key, now),
        }
        if is_done { Ok(()) } else { Err(format!("{write:?} replies {reply:?}")) }
    }

    pub fn flush(&mut self, most: usize, retention_us: u64, max_entries: usize) -> Checked {
        let epoch = self.epoch();
        let reply = self.call(&self.keys.flush(most, retention_us, max_entries, epoch));
        // Redis chooses the fields: those that are left stay in the model, too.
        let left = self.outbox()?;
        let outbox = &mut self.region.replication.outbox;
        let moved = most.min(outbox.len());
        outbox.sort_by_key(|(field, _)| left.iter().any(|(other, _)| other == field));
        let min_ms = self.now.saturating_sub(retention_us) / 1_000;
        self.region.replication.flush(moved, min_ms, max_entries, self.now);
        let expected = Value::Array(vec![Value::Int(self.now as i64), Value::Int(left.len() as i64)]);
        differ("the flush", &expected, &reply)
    }

    pub fn apply(&mut self, peer: u16, batch: &Batch) -> Checked {
        let reply = self.call(&self.keys.apply(&peer.to_string(), batch, self.region.fresh_us));
        let stored = self.region.replication.cursors.get(&peer).copied();
        let expected = match self.region.apply(peer, batch, self.now) {
            true => Applied::Done(Vec::new()),
            false => Applied::Not(stored),
        };
        match expected {
            Applied::Done(_) => self.seen.applied += 1,
            Applied::Not(_) => self.seen.fenced += 1,
        }
        differ("the application", &Some(expected), &applied(&reply))
    }

    /// Reads the stream as a peer whose cursor is `expected`.
    pub fn read(&mut self, expected: Option<Cursor>, most: usize, read_us: u64) -> Checked<Batch> {
        let (entries, last) = self.entries()?;
        let epoch = self.region.replication.epoch;
        let (cursor, _) = Cursor::resume(expected, epoch, last);
        let new = entries.into_iter().filter(|entry| entry.id > cursor.position.1);
        let entries: Vec<Entry> = new.take(most).collect();
        let end = entries.last().map_or(cursor.position.1, |entry| entry.id);
        let next = Cursor { position: (epoch, end), ..cursor };
        Ok(Batch { expected, next, entries, read_us, peer_us: self.now, is_complete: end >= last })
    }

    pub fn dump(&mut self) -> Dump {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        let mut dumped = Vec::new();
        for key in keys {
            let text: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut self.connection).unwrap();
            let expires = redis::cmd("PEXPIRETIME").arg(&key).query(&mut self.connection).unwrap();
            dumped.push((key, text, expires));
        }
        dumped
    }

    /// Loses all since a dump.
    pub fn restore(&mut self, dump: &Dump, region: Region) {
        self.region = region;
        // RESTORE drops a key in the millisecond in which it expires.
        let now_ms = self.now / 1_000;
        self.region.gossip.retain(|_, key| key.record.expires_ms > now_ms);
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL");
        for (key, text, expires) in dump {
            pipe.cmd("RESTORE").arg(key).arg((*expires).max(0)).arg(text).arg("ABSTTL");
        }
        pipe.exec(&mut self.connection).unwrap();
    }

    fn outbox(&mut self) -> Checked<Vec<Change>> {
        let pairs: Vec<(String, i64)> =
            redis::cmd("HGETALL").arg(&self.keys.outbox).query(&mut self.connection).unwrap();
        self.fields(pairs)
    }

    /// A block that waits has the time at which it ends, which is no amount of an entry.
    fn fields(&self, pairs: Vec<(String, i64)>) -> Checked<Vec<Change>> {
        let read = |(field, amount): (String, i64)| {
            let (field, _) = self.peer().change(&field, "0").ok_or_else(|| format!("the field {field:?}"))?;
            Ok((field, amount))
        };
        pairs.into_iter().map(read).collect()
    }

    /// Returns the entries of the stream, and the ID of the newest one there has been.
    fn entries(&mut self) -> Checked<(Vec<Entry>, Id)> {
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(&self.keys.stream);
        pipe.cmd("XRANGE").arg(&self.keys.stream).arg("-").arg("+");
        let (exists, entries): (bool, Vec<Stored>) = pipe.query(&mut self.connection).unwrap();
        let read = |(id, pairs): &Stored| match self.peer().entry(id, pairs) {
            Some((entry, 0)) => Ok(entry),
            other => Err(format!("entry {pairs:?} is read as {other:?}")),
        };
        let entries = entries.iter().map(read).collect::<Checked<Vec<Entry>>>()?;
        if !exists {
            return Ok((entries, (0, 0)));
        }
        let mut info = redis::cmd("XINFO");
        let info: HashMap<String, Value> =
            info.arg("STREAM").arg(&self.keys.stream).query(&mut self.connection).unwrap();
        let last: String = redis::from_redis_value(info["last-generated-id"].clone()).unwrap();
        let (ms, sequence) = last.split_once('-').unwrap();
        Ok((entries, (ms.parse().unwrap(), sequence.parse().unwrap())))
    }

    /// Compares all that is stored.
    pub fn compare(&mut self, gate: &Gossip) -> Checked {
        self.compare_replication()?;
        for key in KEYS.into_iter().chain(SHARES) {
            let now = self.now;
            self.region.gossip.retain(|_, key| !key.record.has_expired(now));
            let mut expected = self.region.gossip.get(key).cloned().unwrap_or_default();
            let (fields, expires) = self.state(gate, key);
            match gate.quota.kind() {
                Kind::FixedWindow(_) | Kind::SlidingCounter(_) => {
                    let found = windows(&fields, expires)?;
                    let has_no_debt = found.debt + found.prior == 0 && found.windows.counts[1] > 0;
                    if has_no_debt && found.record.expires_ms > expected.record.expires_ms {
                        // Set by another version of the gate. The fast path keeps the expiry of a window in use.
                        expected.record.expires_ms = found.record.expires_ms;
                        self.region.gossip.insert(key.to_owned(), expected.clone());
                    }
                    differ(key, &exact(&expected, now), &exact(&found, now))?;
                }
                _ => compare_record(gate, &expected.record, &fields, expires, now)
                    .map_err(|error| format!("{key}: {error}"))?,
            }
        }
        Ok(())
    }

    fn compare_replication(&mut self) -> Checked {
        let mut outbox = self.outbox()?;
        let mut expected = self.region.replication.outbox.clone();
        for changes in [&mut outbox, &mut expected] {
            changes.sort_by_key(|change| format!("{change:?}"));
        }
        differ("the outbox", &expected, &outbox)?;
        let (entries, last) = self.entries()?;
        self.compare_entries(&entries)?;
        let replication = &self.region.replication;
        if replication.last != (0, 0) {
            differ("the end of the stream", &replication.last, &last)?;
        }
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(&self.keys.epoch);
        pipe.cmd("HGETALL").arg(&self.keys.counts);
        pipe.cmd("HGETALL").arg(&self.keys.heard);
        for peer in 0..self.regions {
            pipe.cmd("GET").arg(self.keys.cursor(&peer.to_string()));
        }
        let found: Found = query(&pipe, &mut self.connection);
        if let Some(epoch) = &found.epoch {
            differ("the epoch", &replication.epoch, &u64::from_str_radix(epoch, 16).unwrap())?;
        }
        let count = |fate: &str| found.counts.get(fate).copied().unwrap_or(0);
        let counts = Counts { forgiven: count("forgiven"), dropped: count("dropped"), far: count("far") };
        differ("the counts", &self.region.counts, &counts)?;
        (self.seen.forgiven, self.seen.dropped, self.seen.far) = (
            self.seen.forgiven.max(counts.forgiven),
            self.seen.dropped.max(counts.dropped),
            self.seen.far.max(counts.far),
        );
        differ("heard", &replication.heard, &found.heard)?;
        let cursors = found
            .cursors
            .iter()
            .enumerate()
            .filter_map(|(peer, text)| Some((peer as u16, cursor_of(text.as_ref()?).expect("a cursor"))));
        differ("the cursors", &replication.cursors, &cursors.collect())
    }

    /// A flush sends in any order. A reset and the lifting of a block come last.
    fn compare_entries(&mut self, found: &[Entry]) -> Checked {
        let expected = &mut self.region.replication.stream;
        for (expected, found) in expected.iter_mut().zip(found) {
            let is_last = |(field, amount): &&Change| field.verb != Verb::Charge && *amount == 0;
            let last = (expected.changes.last().filter(is_last), found.changes.last().filter(is_last));
            let is_same = expected.id == found.id
                && last.0 == last.1
                && expected.changes.len() == found.changes.len()
                && expected.changes.iter().all(|change| found.changes.contains(change));
            if is_same {
                expected.changes.clone_from(&found.changes);
            }
        }
        differ("the stream", &&*expected.make_contiguous(), &found)
    }

    fn state(&mut self, gate: &Gossip, key: &str) -> (Vec<String>, i64) {
        let mut pipe = redis::pipe();
        match gate.quota.kind() {
            Kind::SlidingLog(_) => pipe.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES"),
            _ => pipe.cmd("HGETALL").arg(key),
        };
        pipe.cmd("PEXPIRETIME").arg(key);
        pipe.query(&mut self.connection).unwrap()
    }
}

struct Found {
    epoch: Option<String>,
    counts: HashMap<String, u64>,
    heard: BTreeMap<u16, u64>,
    cursors: Vec<Option<String>>,
}

fn query(pipe: &Pipeline, connection: &mut Connection) -> Found {
    let mut values: Vec<Value> = pipe.query(connection).unwrap();
    let cursors = values.split_off(3);
    let mut values = values.into_iter();
    let mut next = || values.next().unwrap();
    Found {
        epoch: redis::from_redis_value(next()).unwrap(),
        counts: redis::from_redis_value(next()).unwrap(),
        heard: redis::from_redis_value(next()).unwrap(),
        cursors: cursors.into_iter().map(|value| redis::from_redis_value(value).unwrap()).collect(),
    }
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, model: &T, lua: &T) -> Checked {
    if model == lua { Ok(()) } else { Err(format!("{what} differs\nmodel {model:?}\nLua   {lua:?}")) }
}

/// Returns what a script stores of windows. A block that has ended equals none.
fn exact(key: &Key, now: u64) -> (Windows, u64, u64, u64, u64) {
    let blocked = key.record.blocked_until_us;
    (key.windows, key.debt, key.prior, if blocked > now { blocked } else { 0 }, key.record.expires_ms)
}

fn windows(fields: &[String], expires_ms: i64) -> Checked<Key> {
    let [_, text] = fields else { return Ok(Key::default()) };
    let numbers: Vec<u64> = text
        .split(|letter: char| !letter.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap())
        .collect();
    let [previous, current, next, start_us, debt, prior, ref blocked @ ..] = numbers[..] else {
        return Err(format!("the text {text:?}"));
    };
    let blocked_until_us = blocked.first().copied().unwrap_or(0);
    let expires_ms = u64::try_from(expires_ms).map_err(|_| format!("{text:?} never expires"))?;
    Ok(Key {
        windows: Windows { start_us, counts: [previous, current, next].map(|count| count as i64) },
        debt,
        prior,
        record: Record { blocked_until_us, expires_ms, ..Record::default() },
    })
}

fn compare_record(gate: &Gossip, record: &Record, fields: &[String], expires: i64, now: u64) -> Checked {
    let quota = &gate.quota;
    let found = left(quota, fields, u64::try_from(expires).ok(), now)?;
    let expected = Left::of(record, quota, now);
    differ("the state", &expected.held, &found.held)?;
    differ("the block", &expected.blocked_until_us, &found.blocked_until_us)?;
    if found.exists && found.expires_ms.is_none() {
        return Err("the key never expires".to_owned());
    }
    match expected.is_untouched() {
        true => Ok(()),
        false => differ("the expiry", &expected.expires_ms, &found.expires_ms),
    }
}

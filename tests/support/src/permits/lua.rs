//! The scripts on a real Redis, in a test build whose clock and expiries the test controls.

use std::collections::HashMap;

use redis::{Connection, Value};
use tidegate::Quota;
use tidegate::algorithm::all_scripts;
use tidegate::reference::Before;

use super::arguments::{acquire_all_args, acquire_args, uniform_limit};
use super::call::{Call, Group, Item, LeaseVerb, Loss, Outcome, Refusal, Reply};
use super::state::{Kept, State, Store};
use super::stored::{leases, level, permits};
use crate::script::{connect, test_build};

pub struct LuaStore {
    connection: Connection,
    digests: HashMap<&'static str, String>,
    /// Keeps the keys of concurrent tests apart.
    prefix: String,
    bucket: Quota,
    state: State,
}

/// A key of the store, as the test names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Leases,
    Permits(usize),
    Bucket,
}

impl LuaStore {
    /// Loads the scripts after a change to the text of each.
    pub fn load(url: &str, change: impl Fn(String) -> String) -> Self {
        let mut connection = connect(url);
        let digests = all_scripts()
            .map(|script| {
                let (text, _) = test_build(&change(script.text.to_owned()));
                let digest: String =
                    redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).unwrap();
                (script.name, digest)
            })
            .collect();
        let prefix = format!("permits:{}", rand::random::<u64>());
        let bucket = Quota::token_bucket(1, tidegate::Rate::per_second(1));
        Self { connection, digests, prefix, bucket, state: State::default() }
    }

    fn key(&self, key: Key) -> String {
        match key {
            Key::Leases => format!("{}:holders", self.prefix),
            Key::Permits(index) => format!("{}:{index}", self.prefix),
            Key::Bucket => format!("{}:bucket", self.prefix),
        }
    }

    /// Calls a script. Returns its reply, and records the state that it left at each key.
    ///
    /// The arguments include the bound of bounded scripts.
    fn run(&mut self, script: &str, keys: &[Key], args: &[String], now: u64) -> Result<Value, String> {
        let names: Vec<String> = keys.iter().map(|key| self.key(*key)).collect();
        let digest = &self.digests[script];
        let mut command = redis::cmd("EVALSHA");
        command.arg(digest).arg(names.len()).arg(names).arg(args).arg(now);
        let values: Vec<Value> = command.query(&mut self.connection).map_err(|error| error.to_string())?;
        let mut values = values.into_iter();
        let reply = values.next().ok_or("an empty reply")?;
        for key in keys {
            let mut next = || values.next().ok_or("a short reply");
            let fields: Vec<String> = redis::from_redis_value(next()?).map_err(|error| error.to_string())?;
            let expires: String = redis::from_redis_value(next()?).map_err(|error| error.to_string())?;
            self.record(*key, &fields, &expires).ok_or_else(|| {
                format!("{key:?} holds {fields:?} and expires at {expires:?} after {reply:?}")
            })?;
        }
        Ok(reply)
    }

    fn record(&mut self, key: Key, fields: &[String], expires: &str) -> Option<()> {
        if fields.is_empty() {
            match key {
                Key::Leases => self.state.leases = None,
                Key::Permits(index) => self.state.keys[index] = None,
                Key::Bucket => self.state.bucket = None,
            }
            return Some(());
        }
        let expires_ms = expires.parse().ok()?;
        match key {
            Key::Leases => self.state.leases = Some(Kept { value: leases(fields)?, expires_ms }),
            Key::Permits(index) => {
                self.state.keys[index] = Some(Kept { value: permits(fields)?, expires_ms });
            }
            Key::Bucket => self.state.bucket = Some(Kept { value: level(fields)?, expires_ms }),
        }
        Some(())
    }

    fn lose(&mut self, loss: Loss) {
        let keys = match loss {
            Loss::Everything => vec![Key::Leases, Key::Permits(0), Key::Permits(1), Key::Bucket],
            Loss::Key(key) => vec![Key::Permits(key)],
            Loss::Leases => vec![Key::Leases],
        };
        for key in keys {
            let name = self.key(key);
            let _: usize = redis::cmd("DEL")
                .arg(&name)
                .arg(format!("{name}:expires"))
                .query(&mut self.connection)
                .unwrap();
            self.record(key, &[], "");
        }
    }

    fn take(&mut self, groups: &[Group], bound: Option<u64>, now: u64) -> Result<Reply, String> {
        let items = || groups.iter().flat_map(|group| &group.items);
        let mut keys = vec![Key::Leases];
        keys.extend(items().map(|item| match item {
            Item::Permit { key, .. } => Key::Permits(*key),
            Item::Bucket { .. } => Key::Bucket,
        }));
        let is_uniform = uniform_limit(groups);
        let (script, mut args) = match is_uniform {
            Some(limit) => ("acquire", acquire_args(groups, limit)),
            None => ("acquire_all", acquire_all_args(groups, &self.bucket)),
        };
        args.push(bound.map_or_else(String::new, |bound| bound.to_string()));
        let reply = self.run(script, &keys, &args, now)?;
        if reply == Value::BulkString(format!("LATE {now}").into_bytes()) {
            return Ok(Reply::Late);
        }
        outcomes(groups, is_uniform.is_some(), now, reply).map(Reply::Take)
    }
}

impl Store for LuaStore {
    fn clear(&mut self, bucket: Quota) {
        self.bucket = bucket;
        self.lose(Loss::Everything);
    }

    fn call(&mut self, call: &Call, now: u64) -> Result<(Reply, State), String> {
        let reply = match call {
            Call::Take(groups, bound) => self.take(groups, *bound, now)?,
            Call::Lease(verb, name) => {
                let verb = match verb {
                    LeaseVerb::Open => "open",
                    LeaseVerb::Renew => "renew",
                    LeaseVerb::End => "end",
                };
                let reply =
                    self.run("permit_lease", &[Key::Leases], &[verb.to_owned(), name.clone()], now)?;
                match reply {
                    Value::BulkString(text) => Reply::Lease(Err(refusal(&text)?)),
                    Value::Array(values) => match values[..] {
                        [Value::Int(at), Value::Int(end)] if at as u64 == now => Reply::Lease(Ok(end as u64)),
                        _ => return Err(format!("{values:?}")),
                    },
                    other => return Err(format!("{other:?}")),
                }
            }
            Call::Block { key, limit, for_us } => {
                let args = [limit.units, 0, 0, 0, *for_us, 0].map(|arg| arg.to_string());
                match self.run("block:in_flight", &[Key::Permits(*key)], &args, now)? {
                    Value::Int(at) if at as u64 == now => Reply::Done,
                    other => return Err(format!("{other:?}")),
                }
            }
            Call::Lose(loss) => {
                self.lose(*loss);
                Reply::Done
            }
        };
        Ok((reply, self.state.clone()))
    }
}

fn refusal(text: &[u8]) -> Result<Refusal, String> {
    match String::from_utf8_lossy(text)
        .trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ' ')
    {
        "LAPSED lease" => Ok(Refusal::Lapsed),
        "STALE message" => Ok(Refusal::Stale),
        other => Err(other.to_owned()),
    }
}

fn outcomes(
    groups: &[Group],
    is_uniform: bool,
    now: u64,
    reply: Value,
) -> Result<Vec<Result<Outcome, Refusal>>, String> {
    let Value::Array(values) = &reply else { return Err(format!("{reply:?}")) };
    let mut values = values.iter().peekable();
    let error = || format!("{reply:?}");
    let number = |value: Option<&Value>| match value {
        Some(Value::Int(number)) => Ok(*number),
        _ => Err(error()),
    };
    if number(values.next())? as u64 != now {
        return Err(error());
    }
    let mut outcomes = Vec::new();
    for group in groups {
        if let Some(Value::BulkString(text)) = values.peek() {
            outcomes.push(Err(refusal(text)?));
            values.next();
            continue;
        }
        // Omitted if all are admitted, except in groups.
        let k = values.next_if(|value| matches!(value, Value::Int(..0)));
        let k = match k {
            Some(Value::Int(k)) => (-1 - k) as u64,
            _ if is_uniform => group.n,
            _ => return Err(error()),
        };
        let mut before = Vec::new();
        for item in &group.items {
            let mut raw = [0; 3];
            let first = number(values.next())?;
            raw[0] = if first < 0 { -1 - first } else { first } as u64;
            let blocked_until_us = if first < 0 { number(values.next())? as u64 } else { 0 };
            if let Item::Permit { .. } = item {
                raw[1] = number(values.next())? as u64;
            }
            before.push(Before { blocked_until_us, raw });
        }
        outcomes.push(Ok(Outcome { k, before }));
    }
    match values.next() {
        None => Ok(outcomes),
        Some(_) => Err(error()),
    }
}

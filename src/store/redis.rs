//! The Redis store: maps groups to script calls, and replies to outcomes.

use futures_util::future::join_all;
use redis::{Cmd, RedisWrite, ToRedisArgs, Value};

use super::command::{
    Heartbeat, MAX_OVERRIDE_BYTES, MAX_OVERRIDES, OverrideText, Standing, Write, too_many_overrides,
};
use super::take::{Group, Item, Outcome};
use super::target::Target;
use crate::algorithm::{Definition, GROUP, RawState, Storage};
use crate::connection::{CallTarget, Connection, Deadline};
use crate::error::Error;
use crate::health::Server;
use crate::key::HashTag;
use crate::quota::Quota;
use crate::reference::Before;
use crate::script;

#[derive(Debug)]
pub(crate) struct RedisStore {
    connection: Connection,
    /// Any key of the namespace.
    key: String,
}

impl RedisStore {
    pub(crate) fn new(connection: Connection, key: String) -> Self {
        Self { connection, key }
    }

    #[cfg(feature = "admin")]
    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn address(&self) -> String {
        self.connection.address()
    }

    pub(crate) fn close(&self) {
        self.connection.close();
    }

    pub(crate) fn waited_for(&self) -> &'static str {
        self.connection.waited_for()
    }

    /// Sends groups of one key with the same quota and hash tag in one call of the algorithm's script, and
    /// groups of several keys in a call of `group`. All calls are in flight together.
    pub(crate) async fn take(&self, groups: &[Group], deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        if let Some(quota) = uniform_quota(groups)
            && groups.iter().all(|group| group.hash_tag() == groups[0].hash_tag())
        {
            return self.call(Some(quota), &groups.iter().collect::<Vec<_>>(), deadline).await;
        }
        let mut calls: Vec<(Call<'_>, Vec<usize>)> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let call = (group.hash_tag(), uniform_quota(std::slice::from_ref(group)));
            match calls.iter_mut().find(|(other, _)| *other == call) {
                Some((_, members)) => members.push(index),
                None => calls.push((call, vec![index])),
            }
        }
        let mut outcomes = vec![None; groups.len()];
        let answered = join_all(calls.iter().map(|((_, quota), members)| async move {
            let groups: Vec<&Group> = members.iter().map(|&index| &groups[index]).collect();
            self.call(*quota, &groups, deadline).await
        }));
        for ((_, members), answers) in calls.iter().zip(answered.await) {
            for (&index, answer) in members.iter().zip(answers) {
                outcomes[index] = Some(answer);
            }
        }
        let no_reply = || Err(Error::unavailable("no reply"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(no_reply)).collect()
    }

    async fn call(
        &self,
        quota: Option<&Quota>,
        groups: &[&Group],
        deadline: Deadline,
    ) -> Vec<Result<Outcome, Error>> {
        match self.try_call(quota, groups, deadline).await {
            Ok(reply) => Reply::new(reply).outcomes(groups),
            Err(error) if error.is_of_keys_apart() && groups.len() > 1 => {
                // Their slot is migrating. A single key is on one node at every moment.
                let each = groups.iter().map(|group| async move {
                    let reply = self.try_call(quota, &[*group], deadline).await?;
                    Reply::new(reply).outcome_of_one(group)
                });
                join_all(each).await
            }
            Err(error) => vec![Err(error); groups.len()],
        }
    }

    async fn try_call(
        &self,
        quota: Option<&Quota>,
        groups: &[&Group],
        deadline: Deadline,
    ) -> Result<Value, Error> {
        let to = CallTarget { hash_tag: Some(groups[0].hash_tag()), deadline, is_repeatable: true };
        match quota {
            Some(quota) => {
                let script = &quota.kind().definition().scripts.take;
                self.connection.run(script, |command| take_args(quota, groups, command), to).await
            }
            None => {
                let args = |command: &mut Cmd| group_args(groups, command);
                self.connection.run(&GROUP, args, to).await
            }
        }
    }

    pub(crate) async fn server(&self, deadline: Deadline) -> Result<Server, Error> {
        let info = self.connection.info(deadline).await?;
        let missing_permissions =
            match self.run_at(&self.key, &script::RIGHTS, |_| {}, deadline, true).await? {
                Value::Array(names) => redis::from_redis_value(Value::Array(names)).unwrap_or_default(),
                other => return Err(unexpected(&other)),
            };
        Ok(Server { missing_permissions, ..Server::of_info(&info) })
    }

    pub(crate) async fn count_in(
        &self,
        Heartbeat { key, name, lifetime }: Heartbeat<'_>,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let args = |command: &mut Cmd| {
            command.arg(name).arg(lifetime.as_millis() as u64);
        };
        match self.run_at(key, &script::HEARTBEAT, args, deadline, true).await? {
            Value::Int(count @ 0..) => Ok(count.unsigned_abs()),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn overrides(
        &self,
        key: &str,
        known: &str,
        deadline: Deadline,
    ) -> Result<Standing, Error> {
        let args = |command: &mut Cmd| {
            command.arg(known).arg(MAX_OVERRIDES).arg(MAX_OVERRIDE_BYTES);
        };
        let reply = self.run_at(key, &script::OVERRIDES, args, deadline, true).await?;
        let Value::Array(values) = reply else { return Err(unexpected(&reply)) };
        let mut values = values.into_iter();
        let now_us = match values.next() {
            Some(Value::Int(now_us @ 0..)) => now_us.unsigned_abs(),
            other => return Err(unexpected(&other.unwrap_or(Value::Nil))),
        };
        let text = |value| match value {
            Value::BulkString(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            other => Err(unexpected(&other)),
        };
        let changed = text(values.next().unwrap_or(Value::Nil))?;
        let left_out = match values.next() {
            Some(Value::Int(left_out @ 0..)) => left_out.unsigned_abs(),
            other => return Err(unexpected(&other.unwrap_or(Value::Nil))),
        };
        let mut fields = Vec::new();
        while let (Some(field), Some(value)) = (values.next(), values.next()) {
            fields.push((text(field)?, text(value)?));
        }
        Ok(Standing { now_us, changed, fields, left_out })
    }

    pub(crate) async fn set_override(
        &self,
        key: &str,
        entry: &OverrideText,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let args = |command: &mut Cmd| {
            command.arg(&entry.field).arg(entry.text.as_deref().unwrap_or_default());
            command.arg(Optional(entry.lasts_us)).arg(MAX_OVERRIDES);
        };
        // A removal is not retried: the second call could remove an override written in between.
        let is_repeatable = entry.text.is_some();
        match self.run_at(key, &script::OVERRIDE, args, deadline, is_repeatable).await? {
            Value::Int(_) => Ok(()),
            Value::BulkString(failed) if failed == b"FULL" => Err(too_many_overrides()),
            Value::BulkString(failed) => Err(Error::from_script(&String::from_utf8_lossy(&failed))),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs a script on a key for all gates, which has the first hash tag.
    async fn run_at(
        &self,
        key: &str,
        script: &script::Script,
        args: impl Fn(&mut Cmd),
        deadline: Deadline,
        is_repeatable: bool,
    ) -> Result<Value, Error> {
        let to = CallTarget { hash_tag: Some(HashTag::default()), deadline, is_repeatable };
        self.connection.run(script, |command| args(command.arg(1).arg(key)), to).await
    }

    /// Writes as [`Store::write`](super::Store::write) does.
    pub(crate) async fn write(
        &self,
        target: &Target,
        write: Write,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let kind = target.gate.quota.kind();
        let Definition { scripts, storage, .. } = kind.definition();
        let (script, is_repeatable) = match write {
            Write::Refund { .. } => (&scripts.refund, false),
            Write::Penalize { .. } => (&scripts.penalize, true),
            // Lifting a block is not retried: the second call could lift a block set in between.
            Write::Block { for_us } => (&scripts.block, for_us > 0),
            Write::Reset => (&script::RESET, false),
        };
        let args = |command: &mut Cmd| {
            command.arg(1).arg(&target.redis_key).arg(&kind.args());
            match write {
                Write::Refund { units, stamp_us } => command.arg(units).arg(Optional(stamp_us)),
                Write::Penalize { units } => command.arg(units),
                Write::Block { for_us } => command.arg(for_us).arg(u8::from(*storage == Storage::Log)),
                Write::Reset => command,
            };
        };
        match self
            .connection
            .run(script, args, CallTarget { hash_tag: Some(target.hash_tag), deadline, is_repeatable })
            .await?
        {
            Value::Int(now_us) => Ok(now_us.unsigned_abs()),
            Value::Array(values) if let [Value::Int(_), Value::Int(stamp_us)] = values[..] => {
                Ok(stamp_us.unsigned_abs())
            }
            Value::BulkString(failed) => Err(Error::from_script(&String::from_utf8_lossy(&failed))),
            other => Err(unexpected(&other)),
        }
    }
}

/// The hash tag of a call, and its quota; `None` is a call of `group`.
type Call<'a> = (HashTag, Option<&'a Quota>);

/// Returns the quota of all groups, if each is one key of the same quota.
fn uniform_quota(groups: &[Group]) -> Option<&Quota> {
    let first = &groups.first()?.items.first()?.target.gate.quota;
    groups
        .iter()
        .all(|group| matches!(&*group.items, [item] if item.target.gate.quota == *first))
        .then_some(first)
}

/// A number, or no argument.
struct Optional(Option<u64>);

impl ToRedisArgs for Optional {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self.0 {
            Some(number) => number.write_redis_args(out),
            None => out.write_arg(b""),
        }
    }
}

/// Appends arguments in the order of the header of `take.lua`.
fn take_args(quota: &Quota, groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| &group.items);
    command.arg(items().count());
    for item in items() {
        command.arg(&item.target.redis_key);
    }
    command.arg(&quota.kind().args());
    let wanted = groups
        .iter()
        .flat_map(|group| group.items.iter().map(|item| (group.n, item.cost, item.max_delay_us)));
    let Some(first) = wanted.clone().next() else { return };
    // Fewer arguments are faster: Redis parses each one and makes a Lua string of it.
    let alike = wanted.clone().all(|other| other == first);
    if alike && first == (1, 1, None) {
        return;
    }
    wanted.take(if alike { 1 } else { usize::MAX }).for_each(|(n, cost, max_delay_us)| {
        command.arg(n).arg(cost).arg(Optional(max_delay_us));
    });
}

/// Appends arguments in the order of the header of `group.lua`.
fn group_args(groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| &group.items);
    let mut quotas: Vec<&Quota> = Vec::new();
    command.arg(items().count());
    for item in items() {
        command.arg(&item.target.redis_key);
        let quota = &item.target.gate.quota;
        if !quotas.contains(&quota) {
            quotas.push(quota);
        }
    }
    command.arg(quotas.len());
    for quota in &quotas {
        command.arg(quota.algorithm()).arg(&quota.kind().args());
    }
    for group in groups {
        command.arg(group.n).arg(group.items.len());
        for item in &group.items {
            let index = quotas.iter().position(|quota| **quota == item.target.gate.quota).unwrap_or(0);
            command.arg(index + 1).arg(item.cost).arg(Optional(item.max_delay_us));
        }
    }
}

/// A flat reply, read in order.
struct Reply(Result<std::vec::IntoIter<Value>, Error>);

impl Reply {
    fn new(reply: Value) -> Self {
        Self(match reply {
            Value::Array(values) => Ok(values.into_iter()),
            other => Err(unexpected(&other)),
        })
    }

    fn outcomes(mut self, groups: &[&Group]) -> Vec<Result<Outcome, Error>> {
        match self.number() {
            Ok(now_us) => groups.iter().map(|group| self.outcome(group, now_us)).collect(),
            Err(error) => groups.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn outcome_of_one(mut self, group: &Group) -> Result<Outcome, Error> {
        let now_us = self.number()?;
        self.outcome(group, now_us)
    }

    fn outcome(&mut self, group: &Group, now_us: u64) -> Result<Outcome, Error> {
        // A negative number encodes how many were admitted. It is omitted if all were.
        let (k, mut first) = match self.signed()? {
            first @ 0.. => (group.n, Some(first)),
            k => ((-1 - k).unsigned_abs(), None),
        };
        let mut before = |item: &Item| self.before(&item.target.gate.quota, first.take());
        let before = group.items.iter().map(&mut before).collect::<Result<_, _>>()?;
        Ok(Outcome { k, before, now_us })
    }

    /// Parses the state before a take. `first` is its first number, if it was read already.
    fn before(&mut self, quota: &Quota, first: Option<i64>) -> Result<Before, Error> {
        let fields = quota.kind().definition().fields;
        let mut raw = RawState::default();
        // A negative first number means that a block follows it.
        let first = first.map_or_else(|| self.signed(), Ok)?;
        raw[0] = if first < 0 { -1 - first } else { first }.unsigned_abs();
        let blocked_until_us = if first < 0 { self.number()? } else { 0 };
        for number in raw.iter_mut().take(fields).skip(1) {
            *number = self.number()?;
        }
        Ok(Before { blocked_until_us, raw })
    }

    fn number(&mut self) -> Result<u64, Error> {
        match self.signed()? {
            number @ 0.. => Ok(number.unsigned_abs()),
            number => Err(self.broken(unexpected(&Value::Int(number)))),
        }
    }

    /// Reads a number. A string in place of a number fails that group alone; any other type makes the rest of
    /// the reply unusable.
    fn signed(&mut self) -> Result<i64, Error> {
        let values = self.0.as_mut().map_err(|error| error.clone())?;
        let failed = match values.next() {
            Some(Value::Int(number)) => return Ok(number),
            Some(Value::BulkString(text)) => return Err(Error::from_script(&String::from_utf8_lossy(&text))),
            Some(other) => unexpected(&other),
            None => Error::unavailable("its reply is too short: is this a Redis?"),
        };
        Err(self.broken(failed))
    }

    fn broken(&mut self, failed: Error) -> Error {
        self.0 = Err(failed.clone());
        failed
    }
}

fn unexpected(value: &Value) -> Error {
    let kind = match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer out of range",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a string",
        Value::Array(_) => "an array",
        _ => "a value of another type",
    };
    Error::unavailable(format!("its reply holds {kind} where tidegate's scripts put none: is this a Redis?"))
}

//! The Redis store: groups into script calls, replies into outcomes.

use redis::Value;

use super::{Group, Outcome, Target, Write};
use crate::algorithm::{Before, Seen};
use crate::connection::{Connection, Deadline, ScriptArgs};
use crate::error::Error;
use crate::quota::Quota;
use crate::script;

/// How many keys one call carries at most. A call holds Redis for all others:
/// 128 keys are 0.6 to 1.6 ms.
const MOST_KEYS: usize = 128;

#[derive(Debug)]
pub(crate) struct RedisStore {
    connection: Connection,
}

impl RedisStore {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    pub(crate) fn close(&self) {
        self.connection.close();
    }

    pub(crate) async fn take(&self, groups: &[Group], deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        let mut outcomes = Vec::with_capacity(groups.len());
        let mut rest = groups;
        while !rest.is_empty() {
            let (call, after) = rest.split_at(next_call(rest));
            let script = match uniform_quota(call) {
                Some(quota) => script::of(&script::TAKE, quota.kind()),
                None => &script::GROUP,
            };
            match self.connection.run(script, &take_args(call), deadline, true).await {
                Ok(reply) => outcomes.extend(Reply::new(reply).outcomes(call)),
                Err(error) => outcomes.extend(call.iter().map(|_| Err(error.clone()))),
            }
            rest = after;
        }
        outcomes
    }

    pub(crate) async fn write(&self, target: &Target, write: Write, deadline: Deadline) -> Result<(), Error> {
        let kind = target.gate.quota.kind();
        let mut args = ScriptArgs::default();
        args.key(&target.redis_key);
        for number in script::quota_args(kind) {
            args.arg(number);
        }
        let (scripts, again) = match write {
            Write::Refund { units, stamp_us } => {
                args.arg(units);
                args.arg(stamp_us.map_or_else(String::new, |stamp| stamp.to_string()));
                (&script::REFUND, false)
            }
            Write::Penalize { units } => {
                args.arg(units);
                (&script::PENALIZE, true)
            }
            Write::Block { for_us } => {
                args.arg(for_us);
                args.arg(script::key_type(kind));
                // Lifting a block gives back: done again, it would lift one that came since.
                (&script::BLOCK, for_us > 0)
            }
            Write::Reset => {
                self.connection.run(&script::RESET, &args, deadline, false).await?;
                return Ok(());
            }
        };
        match self.connection.run(script::of(scripts, kind), &args, deadline, again).await? {
            Value::Int(_) => Ok(()),
            Value::BulkString(failed) => Err(Error::from_script(&String::from_utf8_lossy(&failed))),
            other => Err(unexpected(&other)),
        }
    }
}

/// How many of the groups go into the next call: at least one.
fn next_call(groups: &[Group]) -> usize {
    let mut keys = 0;
    let fitting = groups.iter().take_while(|group| {
        keys += group.items.len();
        keys <= MOST_KEYS
    });
    fitting.count().max(1)
}

/// The quota of all groups, if each is one key of the same quota.
fn uniform_quota(groups: &[Group]) -> Option<&Quota> {
    let first = &groups.first()?.items.first()?.target.gate.quota;
    groups
        .iter()
        .all(|group| matches!(&*group.items, [item] if item.target.gate.quota == *first))
        .then_some(first)
}

/// As the headers of `take.lua` and `group.lua` say.
fn take_args(groups: &[Group]) -> ScriptArgs {
    let mut args = ScriptArgs::default();
    if let Some(quota) = uniform_quota(groups) {
        for number in script::quota_args(quota.kind()) {
            args.arg(number);
        }
        for group in groups {
            args.arg(group.n);
            for item in &group.items {
                args.key(&item.target.redis_key);
                args.arg(item.cost);
                args.arg(item.max_delay_us.map_or_else(String::new, |delay| delay.to_string()));
            }
        }
        return args;
    }
    let mut quotas: Vec<&Quota> = Vec::new();
    let mut rows = Vec::new();
    for group in groups {
        rows.push(group.n.to_string());
        rows.push(group.items.len().to_string());
        for item in &group.items {
            let quota = &item.target.gate.quota;
            let index = quotas.iter().position(|known| *known == quota).unwrap_or_else(|| {
                quotas.push(quota);
                quotas.len() - 1
            });
            args.key(&item.target.redis_key);
            rows.push((index + 1).to_string());
            rows.push(item.cost.to_string());
            rows.push(item.max_delay_us.map_or_else(String::new, |delay| delay.to_string()));
        }
    }
    args.arg(quotas.len());
    for quota in quotas {
        args.arg(quota.algorithm());
        for number in script::quota_args(quota.kind()) {
            args.arg(number);
        }
    }
    for row in rows {
        args.arg(row);
    }
    args
}

/// A flat reply, read from front to back.
struct Reply(Result<std::vec::IntoIter<Value>, Error>);

impl Reply {
    fn new(reply: Value) -> Self {
        Self(match reply {
            Value::Array(values) => Ok(values.into_iter()),
            other => Err(unexpected(&other)),
        })
    }

    fn outcomes(mut self, groups: &[Group]) -> Vec<Result<Outcome, Error>> {
        match self.number() {
            Ok(now_us) => groups.iter().map(|group| self.outcome(group, now_us)).collect(),
            Err(error) => groups.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn outcome(&mut self, group: &Group, now_us: u64) -> Result<Outcome, Error> {
        let k = self.number()?;
        let before =
            group.items.iter().map(|item| self.before(&item.target.gate.quota)).collect::<Result<_, _>>()?;
        Ok(Outcome { k, before, now_us })
    }

    fn before(&mut self, quota: &Quota) -> Result<Before, Error> {
        let blocked_until_us = self.number()?;
        let mut seen = Seen::default();
        for number in seen.iter_mut().take(quota.kind().algorithm().fields()) {
            *number = self.number()?;
        }
        Ok(Before { blocked_until_us, seen })
    }

    /// A string in the place of a number is a failure of that group alone; a
    /// reply of another shape leaves nothing that could be trusted after it.
    fn number(&mut self) -> Result<u64, Error> {
        let values = self.0.as_mut().map_err(|error| error.clone())?;
        let failed = match values.next() {
            Some(Value::Int(number)) if number >= 0 => return Ok(number.unsigned_abs()),
            Some(Value::BulkString(text)) => return Err(Error::from_script(&String::from_utf8_lossy(&text))),
            Some(other) => unexpected(&other),
            None => Error::unavailable("its reply is too short: is this a Redis?"),
        };
        self.0 = Err(failed.clone());
        Err(failed)
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

//! The replies of the takes.

use redis::Value;

use crate::error::Error;
use crate::quota::Quota;
use crate::quota::algorithm::RawState;
use crate::quota::reference::Before;
use crate::quota::reference::adapt::{Adaptation, FIELDS};
use crate::store::take::{Group, GroupItem, Outcome};
use crate::store::{Adapted, LeaseReply, UsedCharge};

/// A flat reply, read in order.
pub(super) struct Reply(Result<std::vec::IntoIter<Value>, Error>);

impl Reply {
    pub(super) fn new(reply: Value) -> Self {
        Self(match reply {
            Value::Array(values) => Ok(values.into_iter()),
            other => Err(unexpected(&other)),
        })
    }

    pub(super) fn outcomes(mut self, groups: &[&Group]) -> Vec<Result<Outcome, Error>> {
        match self.number() {
            Ok(now_us) => groups.iter().map(|group| self.outcome(group, now_us)).collect(),
            Err(error) => groups.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn outcome(&mut self, group: &Group, now_us: u64) -> Result<Outcome, Error> {
        // A negative number encodes how many were admitted. It is omitted if all were.
        let (k, mut first) = match self.signed()? {
            first @ 0.. => (group.n, Some(first)),
            k => ((-1 - k).unsigned_abs(), None),
        };
        let mut before = |item: &GroupItem| self.before(&item.target.gate.quota, first.take());
        let before = group.items.iter().map(&mut before).collect::<Result<_, _>>()?;
        let repeated = if group.has_holds() { self.listed(group)? } else { Vec::new() };
        let bans = if group.has_bans() { self.bans(group)? } else { Vec::new() };
        Ok(Outcome { repeated, bans, ..Outcome::new(k, before, now_us) })
    }

    /// Parses the state before a take. `first` is its first number, if it was read already.
    fn before(&mut self, quota: &Quota, first: Option<i64>) -> Result<Before, Error> {
        let fields = quota.kind().fields();
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

    pub(super) fn number(&mut self) -> Result<u64, Error> {
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

/// Parses the reply of `permit_lease.lua`.
pub(super) fn lease_reply(reply: Value) -> Result<LeaseReply, Error> {
    match reply {
        Value::Array(values) => match values[..] {
            [Value::Int(now_us @ 0..), Value::Int(end_us @ 0..)] => {
                Ok(LeaseReply { now_us: now_us.unsigned_abs(), end_us: end_us.unsigned_abs() })
            }
            _ => Err(unexpected(values.first().unwrap_or(&Value::Nil))),
        },
        Value::BulkString(failed) => Err(Error::from_script(&String::from_utf8_lossy(&failed))),
        other => Err(unexpected(&other)),
    }
}

/// Parses the reply of `charge_used.lua`.
pub(super) fn used_charge_reply(reply: Value) -> Result<UsedCharge, Error> {
    let mut reply = match reply {
        Value::BulkString(failed) => return Err(Error::from_script(&String::from_utf8_lossy(&failed))),
        reply => Reply::new(reply),
    };
    let mut number = || reply.number();
    let (now_us, charged, blocked_until_us) = (number()?, number()?, number()?);
    let before = Before { blocked_until_us, raw: [number()?, number()?, number()?] };
    Ok(UsedCharge { charged, before, now_us })
}

/// Parses the reply of `adapt.lua`.
pub(super) fn adapt_reply(reply: Value) -> Result<Adapted, Error> {
    let values = match reply {
        Value::Array(values) => values,
        Value::BulkString(failed) => return Err(Error::from_script(&String::from_utf8_lossy(&failed))),
        other => return Err(unexpected(&other)),
    };
    let mut numbers = [0.0; FIELDS.len()];
    let [Value::Int(now_us @ 0..), Value::Int(wait_us @ 0..), ref fields @ ..] = values[..] else {
        return Err(unexpected(values.first().unwrap_or(&Value::Nil)));
    };
    if fields.len() != numbers.len() {
        return Err(Error::unavailable("its reply has another number of fields: is this a Redis?"));
    }
    for (number, field) in numbers.iter_mut().zip(fields) {
        let Value::BulkString(text) = field else { return Err(unexpected(field)) };
        let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
        *number = parsed.filter(|number| number.is_finite()).ok_or_else(|| unexpected(field))?;
    }
    let adaptation = Adaptation::of_numbers(numbers);
    Ok(Adapted { adaptation, now_us: now_us.unsigned_abs(), wait_us: wait_us.unsigned_abs() })
}

pub(super) fn unexpected(value: &Value) -> Error {
    let kind = match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer out of range",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a string",
        Value::Array(_) => "an array",
        _ => "a value of another type",
    };
    Error::unavailable(format!("its reply holds {kind} where tidegate's scripts put none: is this a Redis?"))
}

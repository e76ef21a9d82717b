//! The replies of the scripts.

use redis::Value;

use super::cursor_of;
use crate::quota::reference::Before;
use crate::regions::reference::gossip::Gossip;
use crate::regions::reference::{Checks, Cursor, Taken, Windows};

/// The reply to an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The changes were applied, except these, by number from 1: each with its error.
    Done(Vec<(u64, String)>),
    /// Nothing has changed, since this cursor is stored, or the read is too old.
    Not(Option<Cursor>),
}

/// Reads the reply to a take: for each key the result or the error. `None` if no script makes this reply.
#[must_use]
pub fn taken(gate: &Gossip, checks: &[Checks], reply: &Value) -> Option<Vec<Result<Taken, String>>> {
    let Value::Array(values) = reply else { return None };
    let mut values = values.iter();
    let now = number(values.next()?)?;
    let rows = checks.iter().map(|checks| {
        let k = match values.next()? {
            Value::BulkString(error) => return Some(Err(String::from_utf8_lossy(error).into_owned())),
            k => number(k)?,
        };
        let mut next = || number(values.next()?);
        let blocked_until_us = next()?;
        let raw = [next()?, next()?, next()?];
        let [start_us, debt, following] = [next()?, next()?, next()?];
        // The units of a fixed window include its debt. Counters have none.
        let counts = [0, raw[0].saturating_sub(debt) as i64, following as i64];
        let windows = Windows { start_us, counts };
        Some(Ok(gate.taken(*checks, k, Before { blocked_until_us, raw }, (windows, debt), now)))
    });
    let rows = rows.collect::<Option<Vec<_>>>()?;
    values.next().is_none().then_some(rows)
}

/// Reads the reply to an application. `None` if no script makes this reply.
#[must_use]
pub fn applied(reply: &Value) -> Option<Applied> {
    let Value::Array(values) = reply else { return None };
    match &values[..] {
        [Value::Int(_), Value::Int(0), Value::BulkString(cursor)] if cursor.is_empty() => {
            Some(Applied::Not(None))
        }
        [Value::Int(_), Value::Int(0), Value::BulkString(cursor)] => {
            Some(Applied::Not(Some(cursor_of(std::str::from_utf8(cursor).ok()?)?)))
        }
        [Value::Int(_), Value::Int(1), failed @ ..] => {
            let failed = failed.chunks(2).map(|pair| match pair {
                [item, Value::BulkString(error)] => {
                    Some((number(item)?, String::from_utf8_lossy(error).into_owned()))
                }
                _ => None,
            });
            Some(Applied::Done(failed.collect::<Option<_>>()?))
        }
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

//! The replies of the scripts.

use redis::Value;

use super::cursor_of;
use crate::quota::algorithm::Kind;
use crate::quota::reference::Before;
use crate::regions::reference::gossip::Gossip;
use crate::regions::reference::{Checks, Cursor, TakeGroup, Taken, Windows};

/// The reply to an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The changes were applied, except these, by number from 1: each with its error.
    Done(Vec<(u64, String)>),
    /// Nothing has changed, since this cursor is stored, or the read is too old.
    Not(Option<Cursor>),
}

/// Reads the reply to a take. For each group, returns the result for each item, or the error: the number of the item
/// that failed, from 1, and the error of the script. `is_cut`: the call had a cut. `None` if no script makes this reply.
#[must_use]
pub fn taken(
    groups: &[TakeGroup<'_>],
    is_cut: bool,
    reply: &Value,
) -> Option<Vec<Result<Vec<Taken>, String>>> {
    let Value::Array(values) = reply else { return None };
    let mut values = values.iter();
    let now = number(values.next()?)?;
    let mut group = |TakeGroup { n, items }: &TakeGroup<'_>| {
        let k = match values.next()? {
            Value::BulkString(error) => return Some(Err(String::from_utf8_lossy(error).into_owned())),
            k => number(k)?,
        };
        let mut all = Vec::new();
        for item in items {
            let checks = Checks { n: *n, cost: item.cost, max_delay: item.max_delay };
            let (before, found) = state(item.gate, &mut values)?;
            all.push(item.gate.taken(checks, k, before, found, now));
        }
        for (item, taken) in items.iter().zip(&mut all).filter(|_| is_cut) {
            taken.share = Some((item.gate.regions, state(item.gate, &mut values)?.0));
        }
        Some(Ok(all))
    };
    let groups = groups.iter().map(&mut group).collect::<Option<Vec<_>>>()?;
    values.next().is_none().then_some(groups)
}

/// Reads the state of an item: the usage, and the windows and their debt, if it has any.
fn state<'v>(gate: &Gossip, mut values: impl Iterator<Item = &'v Value>) -> Option<(Before, (Windows, u64))> {
    let mut next = || number(values.next()?);
    let blocked_until_us = next()?;
    let mut raw = [0; 3];
    for number in &mut raw[..gate.quota.kind().fields()] {
        *number = next()?;
    }
    let mut found = (Windows::default(), 0);
    if let Kind::FixedWindow(_) | Kind::SlidingCounter(_) = gate.quota.kind() {
        let [start_us, debt, following] = [next()?, next()?, next()?];
        // The units of a fixed window include its debt. Counters have none.
        let counts = [0, raw[0].saturating_sub(debt) as i64, following as i64];
        found = (Windows { start_us, counts }, debt);
    }
    Some((Before { blocked_until_us, raw }, found))
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

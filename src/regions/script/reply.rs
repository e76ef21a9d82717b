//! The replies of the scripts.

use redis::Value;

use super::{common_gate, cursor_of};
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
    if let Some(gate) = common_gate(groups, is_cut) {
        let mut values = values.as_slice();
        let rows = groups.iter().map(|group| row(gate, group, &mut values, now)).collect::<Option<_>>()?;
        return values.is_empty().then_some(rows);
    }
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

/// Reads a row of the reply to a take of one gate.
fn row(
    gate: &Gossip,
    TakeGroup { n, items }: &TakeGroup<'_>,
    values: &mut &[Value],
    now: u64,
) -> Option<Result<Vec<Taken>, String>> {
    if let [Value::BulkString(error), rest @ ..] = *values {
        *values = rest;
        return Some(Err(format!("1 {}", String::from_utf8_lossy(error))));
    }
    let mut signed = || match values.split_off_first()? {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    // Like the reply to a plain take.
    let (k, first) = match signed()? {
        first @ 0.. => (*n, first),
        k => ((-1 - k).unsigned_abs(), signed()?),
    };
    let mut before = Before::default();
    if first < 0 {
        before.blocked_until_us = signed()?.try_into().ok()?;
    }
    before.raw[0] = if first < 0 { -1 - first } else { first }.unsigned_abs();
    for number in &mut before.raw[1..gate.quota.kind().fields()] {
        *number = signed()?.try_into().ok()?;
    }
    let mut named = gate.start_us(now).map(|start_us| [start_us, 0, 0]);
    if let (Some(named), [Value::BulkString(text), rest @ ..]) = (&mut named, *values)
        && let Some(numbers) = numbers(text)
    {
        (*named, *values) = (numbers, rest);
    }
    let found = named.map_or_else(Default::default, |named| windows(before.raw[0], named));
    let checks = Checks { n: *n, cost: items[0].cost, max_delay: items[0].max_delay };
    Some(Ok(vec![gate.taken(checks, k, before, found, now)]))
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
        found = windows(raw[0], [next()?, next()?, next()?]);
    }
    Some((Before { blocked_until_us, raw }, found))
}

/// Returns the windows of a state with these used units, and their debt.
fn windows(used: u64, [start_us, debt, next]: [u64; 3]) -> (Windows, u64) {
    // The units of a fixed window include its debt. Counters have none.
    (Windows { start_us, counts: [0, used.saturating_sub(debt) as i64, next as i64] }, debt)
}

/// Reads the start of the current window, its debt, and the units of the next one. `None` of the error of another row.
fn numbers(text: &[u8]) -> Option<[u64; 3]> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ').map(|word| word.parse().ok());
    Some([words.next()??, words.next()??, words.next()??])
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

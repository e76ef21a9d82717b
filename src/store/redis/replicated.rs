//! The calls for gates whose charges other regions hear of: their arguments and replies.

use redis::{Cmd, Value};

use super::reply::unexpected;
use crate::connection::{CallTarget, Connection, Deadline};
use crate::error::Error;
use crate::regions::Replicated;
use crate::regions::reference::gossip::Gossip;
use crate::regions::reference::{TakeGroup, TakeItem, Taken};
use crate::regions::script::{self, Call, taken};
use crate::store::command::{Write, Written};
use crate::store::take::{Group, GroupItem, Outcome};
use crate::store::target::Target;

/// Returns the time of the cut that a gate of the group has to respect, in µs since 1970 by the server's clock.
pub(super) fn cut_us(group: &Group) -> Option<u64> {
    gates(group).filter_map(Replicated::cut_us).min()
}

/// Returns the gate of a group of one key: such groups of one gate are cheaper together.
pub(super) fn gate(group: &Group) -> Option<&Gossip> {
    let [item] = &*group.items else { return None };
    item.target.gate.replicated.as_ref().map(|replicated| &replicated.gossip)
}

fn gates(group: &Group) -> impl Iterator<Item = &Replicated> {
    group.items.iter().filter_map(|item| item.target.gate.replicated.as_ref())
}

/// Returns the call that takes groups. A call during a cut also has the keys of the shares.
pub(super) fn take(groups: &[&Group], cut_us: Option<u64>) -> Result<Call, Error> {
    let no_gate = || Error::config("no gate of the group is replicated");
    let keys = groups.iter().copied().flat_map(gates).next().ok_or_else(no_gate)?.keys();
    let share = |item: &GroupItem| cut_us.map_or_else(String::new, |_| item.target.share_key());
    let shares: Vec<Vec<String>> =
        groups.iter().map(|group| group.items.iter().map(share).collect()).collect();
    let wanted = groups.iter().zip(&shares).map(|(group, shares)| wanted(group, shares)).collect::<Vec<_>>();
    Ok(keys.take(&wanted, cut_us))
}

fn wanted<'a>(group: &'a Group, shares: &'a [String]) -> TakeGroup<'a> {
    let item = |(gate, (item, share)): (&'a Replicated, (&'a GroupItem, &'a String))| {
        let (key, cost, max_delay) = (&*item.target.redis_key, item.cost, item.max_delay_us);
        TakeItem { gate: &gate.gossip, key, share, cost, max_delay }
    };
    TakeGroup { n: group.n, items: gates(group).zip(group.items.iter().zip(shares)).map(item).collect() }
}

/// Reads the reply to a take, and has its charges sent.
pub(super) fn outcomes(groups: &[&Group], cut_us: Option<u64>, reply: &Value) -> Vec<Result<Outcome, Error>> {
    let Some(outcomes) = read(groups, cut_us, reply) else {
        return vec![Err(unexpected(reply)); groups.len()];
    };
    if outcomes.iter().flatten().any(|outcome| outcome.k > 0) {
        groups.iter().copied().flat_map(gates).take(1).for_each(Replicated::wake);
    }
    outcomes
}

fn read(groups: &[&Group], cut_us: Option<u64>, reply: &Value) -> Option<Vec<Result<Outcome, Error>>> {
    let Value::Array(values) = reply else { return None };
    let now_us = match values.first()? {
        Value::Int(now_us) => u64::try_from(*now_us).ok()?,
        _ => return None,
    };
    let no_shares = vec![String::new(); groups.iter().map(|group| group.items.len()).max()?];
    let wanted: Vec<TakeGroup<'_>> = groups.iter().map(|group| wanted(group, &no_shares)).collect();
    let outcome = |taken: Result<Vec<Taken>, String>| {
        let replicated = taken.map_err(|error| Error::from_script(&error))?;
        let k = replicated.first().map_or(0, |taken| taken.k);
        let before = replicated.iter().map(|taken| taken.before).collect();
        Ok(Outcome { replicated, ..Outcome::new(k, before, now_us) })
    };
    Some(taken(&wanted, cut_us.is_some(), reply)?.into_iter().map(outcome).collect())
}

/// Makes a small write, and has it sent.
pub(super) async fn write(
    connection: &Connection,
    gate: &Replicated,
    target: &Target,
    write: Write,
    deadline: Deadline,
) -> Result<Written, Error> {
    let (write, is_repeatable) = match write {
        Write::Refund { units, stamp_us } => (script::Write::Refund(units, stamp_us), false),
        Write::Penalize { units } => (script::Write::Penalize(units), true),
        Write::Block { for_us } => (script::Write::Block(for_us), for_us > 0),
        Write::Reset => (script::Write::Reset, false),
    };
    let call = gate.keys().write(&gate.gossip, &target.redis_key, write, fastrand::u64(..));
    let to = CallTarget { hash_tag: Some(target.hash_tag), deadline, is_repeatable };
    let reply = run(connection, &call, to).await?;
    gate.wake();
    let numbers: &[Value] = match &reply {
        Value::BulkString(failed) => return Err(Error::from_script(&String::from_utf8_lossy(failed))),
        Value::Array(numbers) => numbers,
        _ => &[],
    };
    match *numbers {
        [Value::Int(now_us @ 0..)] => {
            Ok(Written { now_us: now_us.unsigned_abs(), stamp_us: now_us.unsigned_abs() })
        }
        [Value::Int(now_us @ 0..), Value::Int(stamp_us @ 0..)] => {
            Ok(Written { now_us: now_us.unsigned_abs(), stamp_us: stamp_us.unsigned_abs() })
        }
        _ => Err(unexpected(&reply)),
    }
}

pub(super) async fn run(connection: &Connection, call: &Call, to: CallTarget) -> Result<Value, Error> {
    let args = |command: &mut Cmd| {
        command.arg(call.keys.len()).arg(&call.keys).arg(&call.args);
    };
    connection.run(call.script, args, to).await
}

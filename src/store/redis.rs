//! The Redis store: maps groups to script calls, and replies to outcomes.

mod acquire;
mod ban;
mod publish;
#[cfg(feature = "regions")]
mod replicated;
mod reply;
mod reserve;
mod server_clock;

use std::sync::Arc;

use futures_util::future::{join, join_all};
use redis::{Cmd, RedisWrite, ToRedisArgs, Value};

use self::acquire::{Sender, acquire_all_args, acquire_args, is_shared, message_of, peek_alone_args};
use self::reply::{Reply, adapt_reply, lease_reply, unexpected, used_charge_reply};
use self::server_clock::ServerClock;
use super::command::{
    Adapted, Heartbeat, LeaseCall, LeaseReply, MAX_OVERRIDE_BYTES, MAX_OVERRIDES, OverrideText, SettleItem,
    Standing, UsedCharge, Write, Written, too_many_overrides,
};
use super::take::{Group, Outcome};
use super::target::Target;
use crate::connection::{CallTarget, Connection, Deadline};
use crate::error::Error;
use crate::key::HashTag;
use crate::observe::health::Server;
use crate::quota::Quota;
use crate::quota::algorithm::{ACQUIRE_ALL, BAN, Definition, GROUP, REPORT, RESERVE, SETTLE, Storage};
#[cfg(feature = "regions")]
use crate::quota::reference::Before;
use crate::quota::reference::adapt::{Bounds, Report};
use crate::quota::reference::holds::NewHold;
use crate::quota::settlement::Settlement;
#[cfg(feature = "regions")]
use crate::regions::reference::gossip::Gossip;
use crate::script::{self, Script};

#[derive(Debug)]
pub(crate) struct RedisStore {
    connection: Arc<Connection>,
    /// Any key of the namespace.
    key: String,
    clock: ServerClock,
}

impl RedisStore {
    pub(crate) fn new(connection: Arc<Connection>, key: String) -> Self {
        Self { connection, key, clock: ServerClock::default() }
    }

    #[cfg(any(feature = "admin", feature = "regions"))]
    pub(crate) const fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn address(&self) -> String {
        self.connection.address()
    }

    pub(crate) fn close(&self) {
        self.connection.close();
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connection.connections()
    }

    pub(crate) fn waited_for(&self) -> &'static str {
        self.connection.waited_for()
    }

    /// Sends groups of one [kind](CallKind) and hash tag in one call. All calls are in flight together.
    pub(crate) async fn take(&self, groups: &[Group], deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        if let Some(call) = common_call(groups) {
            return self.call(call.1, &groups.iter().collect::<Vec<_>>(), deadline).await;
        }
        let mut calls: Vec<(TaggedCall<'_>, Vec<usize>)> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let call = (group.hash_tag(), CallKind::of(group));
            match calls.iter_mut().find(|(other, _)| *other == call) {
                Some((_, members)) => members.push(index),
                None => calls.push((call, vec![index])),
            }
        }
        let mut outcomes = vec![None; groups.len()];
        let answered = join_all(calls.iter().map(|((_, kind), members)| async move {
            let groups: Vec<&Group> = members.iter().map(|&index| &groups[index]).collect();
            self.call(*kind, &groups, deadline).await
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
        kind: CallKind<'_>,
        groups: &[&Group],
        deadline: Deadline,
    ) -> Vec<Result<Outcome, Error>> {
        // A call that ran before its connection was lost must not count its denials twice. The reply to a repeated
        // message that several groups share does not tell which of them were admitted.
        let is_repeatable = kind != CallKind::Ban && !groups.iter().any(|group| is_shared(group));
        match self.try_call(kind, groups, is_repeatable, deadline).await {
            Ok(reply) => self.outcomes(kind, groups, reply, deadline).await,
            Err(error) if kind == CallKind::Ban && error.is_lost_call() => {
                // A denial stands even if it cannot be counted.
                let uncounted: Vec<Group> = groups.iter().map(|group| group.uncounted()).collect();
                let each =
                    uncounted.iter().map(|group| self.call_one(CallKind::of(group), group, false, deadline));
                Box::pin(join_all(each)).await
            }
            Err(error) if error.is_of_keys_apart() => {
                let failed = (groups.len() == 1).then_some(kind);
                let each = groups.iter().map(|group| self.call_apart(group, failed, &error, deadline));
                Box::pin(join_all(each)).await
            }
            Err(error) => vec![Err(error); groups.len()],
        }
    }

    /// Sends a group in a call of its own, with as few keys as possible, while its slot is migrating: a single key is
    /// on one node at every moment. Returns the error unless that is another call than the `failed` one.
    async fn call_apart(
        &self,
        group: &Group,
        failed: Option<CallKind<'_>>,
        error: &Error,
        deadline: Deadline,
    ) -> Result<Outcome, Error> {
        let group = group.of_fewest_keys();
        let kind = CallKind::of_fewest_keys(&group);
        if failed == Some(kind) {
            return Err(error.clone());
        }
        match self.call_one(kind, &group, !is_shared(&group), deadline).await {
            // It needs the leases, which are another key.
            Err(other) if matches!(kind, CallKind::PeekAlone(_)) && other.is_corrupt_state() => {
                Err(error.clone())
            }
            outcome => outcome,
        }
    }

    async fn call_one(
        &self,
        kind: CallKind<'_>,
        group: &Group,
        is_repeatable: bool,
        deadline: Deadline,
    ) -> Result<Outcome, Error> {
        let reply = self.try_call(kind, &[group], is_repeatable, deadline).await?;
        let outcome = self.outcomes(kind, &[group], reply, deadline).await.pop();
        outcome.unwrap_or_else(|| Err(Error::unavailable("no reply")))
    }

    /// Parses the reply of a call. Sends messages again, without their acquires, for which Redis has no memory.
    async fn outcomes(
        &self,
        kind: CallKind<'_>,
        groups: &[&Group],
        reply: Value,
        deadline: Deadline,
    ) -> Vec<Result<Outcome, Error>> {
        #[cfg(feature = "regions")]
        if let CallKind::Replicated { cut_us, .. } = kind {
            return replicated::outcomes(groups, cut_us, &reply);
        }
        let mut outcomes = Reply::new(reply).outcomes(groups);
        let is_full = || outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(Error::is_out_of_memory));
        if matches!(kind, CallKind::Acquire(..) | CallKind::AcquireAll(_)) && is_full() {
            Box::pin(self.report_kept(groups, &mut outcomes, deadline)).await;
        }
        outcomes
    }

    async fn try_call(
        &self,
        kind: CallKind<'_>,
        groups: &[&Group],
        is_repeatable: bool,
        deadline: Deadline,
    ) -> Result<Value, Error> {
        let to = CallTarget { hash_tag: Some(groups[0].hash_tag()), deadline, is_repeatable };
        match kind {
            CallKind::Take(quota) => {
                let script = &quota.kind().definition().scripts.take;
                let args = |now_us, command: &mut Cmd| take_args(quota, now_us, groups, command);
                self.clock.run_in_span(&self.connection, script, std::iter::once(quota), args, to).await
            }
            CallKind::Group => {
                let args = |now_us, command: &mut Cmd| group_args(now_us, groups, command);
                self.clock.run_in_span(&self.connection, &GROUP, quotas(groups), args, to).await
            }
            // A message can be repeated: Redis knows it by its number.
            CallKind::Acquire(sender, quota) => {
                let script = &quota.kind().definition().scripts.take;
                let args = |command: &mut Cmd| acquire_args(sender, quota, groups, command);
                self.connection.run(script, args, to).await
            }
            CallKind::Report(sender, quota) => {
                let args = |command: &mut Cmd| acquire_args(sender, quota, groups, command);
                self.connection.run(&REPORT, args, to).await
            }
            CallKind::PeekAlone(quota) => {
                let script = &quota.kind().definition().scripts.take;
                let args = |command: &mut Cmd| peek_alone_args(quota, &groups[0].items[0], command);
                self.connection.run(script, args, to).await
            }
            CallKind::AcquireAll(sender) => {
                let args = |now_us, command: &mut Cmd| acquire_all_args(sender, now_us, groups, command);
                self.clock.run_in_span(&self.connection, &ACQUIRE_ALL, quotas(groups), args, to).await
            }
            CallKind::Reserve => {
                let args = |now_us, command: &mut Cmd| reserve::reserve_args(now_us, groups, command);
                self.clock.run_in_span(&self.connection, &RESERVE, quotas(groups), args, to).await
            }
            CallKind::Ban => {
                let args = |now_us, command: &mut Cmd| ban::ban_args(now_us, groups, command);
                self.clock.run_in_span(&self.connection, &BAN, quotas(groups), args, to).await
            }
            #[cfg(feature = "regions")]
            CallKind::Replicated { cut_us, .. } => {
                replicated::run(&self.connection, &replicated::take(groups, cut_us)?, to).await
            }
        }
    }

    pub(crate) async fn permit_lease(
        &self,
        key: &str,
        hash_tag: HashTag,
        call: LeaseCall<'_>,
        deadline: Deadline,
    ) -> Result<LeaseReply, Error> {
        let (action, name) = match call {
            LeaseCall::Open { name } => ("open", name),
            LeaseCall::Renew { name } => ("renew", name),
            LeaseCall::End { name } => ("end", name),
        };
        let args = |command: &mut Cmd| {
            command.arg(1).arg(key).arg(action).arg(name);
        };
        let to = CallTarget { hash_tag: Some(hash_tag), deadline, is_repeatable: true };
        lease_reply(self.connection.run(&script::PERMIT_LEASE, args, to).await?)
    }

    /// Adds a report as [`Store::adapt`](super::Store::adapt) does.
    pub(crate) async fn adapt(
        &self,
        target: &Target,
        report: &Report,
        bounds: &Bounds,
        deadline: Deadline,
    ) -> Result<Adapted, Error> {
        let args = |command: &mut Cmd| {
            command.arg(1).arg(target.adaptive_key());
            command.arg(bounds.min).arg(bounds.max).arg(bounds.tolerance);
            command.arg(report.operations).arg(report.busy_us).arg(report.overloads).arg(report.peak);
            command.arg(report.ended_ms).arg(report.squares);
        };
        let to = CallTarget { hash_tag: Some(target.hash_tag), deadline, is_repeatable: false };
        adapt_reply(self.connection.run(&script::ADAPT, args, to).await?)
    }

    /// Settles as [`Store::settle`](super::Store::settle) does.
    pub(crate) async fn settle(
        &self,
        hold: &NewHold,
        items: &[SettleItem],
        deadline: Deadline,
    ) -> Result<Vec<Result<Settlement, Error>>, Error> {
        let Some(first) = items.first() else { return Ok(Vec::new()) };
        // A hold is settled at most once, so a repeated call changes nothing.
        let to = CallTarget { hash_tag: Some(first.target.hash_tag), deadline, is_repeatable: true };
        let args = |now_us, command: &mut Cmd| reserve::settle_args(hold, now_us, items, command);
        let quotas = items.iter().map(|item| &item.target.gate.quota);
        let reply = self.clock.run_in_span(&self.connection, &SETTLE, quotas, args, to).await?;
        Reply::new(reply).settlements(items.len())
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
        script: &Script,
        args: impl Fn(&mut Cmd) + Sync,
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
    ) -> Result<Written, Error> {
        #[cfg(feature = "regions")]
        if let Some(gate) = &target.gate.replicated {
            return Box::pin(replicated::write(&self.connection, gate, target, write, deadline)).await;
        }
        let kind = target.gate.quota.kind();
        let Definition { scripts, storage, .. } = kind.definition();
        let (script, is_repeatable) = match write {
            Write::Refund { .. } => (scripts.refund.as_ref(), false),
            Write::Penalize { .. } => (scripts.penalize.as_ref(), true),
            // Lifting a block is not retried: the second call could lift a block set in between.
            Write::Block { for_us } => (Some(&scripts.block), for_us > 0),
            Write::Reset => (Some(&script::RESET), false),
        };
        let script = script.ok_or_else(|| not_written(kind.definition().name))?;
        let args = |now_us, command: &mut Cmd| {
            match write {
                // In-flight limits have no holds.
                Write::Reset if target.gate.quota.is_in_flight() => {
                    command.arg(2).arg(&target.redis_key).arg(target.adaptive_key())
                }
                // The holds must not refund what is no longer charged.
                Write::Reset => {
                    command.arg(3).arg(&target.redis_key).arg(target.holds_key()).arg(target.denials_key())
                }
                _ => command.arg(1).arg(&target.redis_key),
            };
            command.arg(&kind.args_at(now_us));
            match write {
                Write::Refund { units, stamp_us } => command.arg(units).arg(Optional(stamp_us)),
                Write::Penalize { units } => command.arg(units),
                Write::Block { for_us } => command.arg(for_us).arg(u8::from(*storage == Storage::Log)),
                Write::Reset => command,
            };
        };
        let to = CallTarget { hash_tag: Some(target.hash_tag), deadline, is_repeatable };
        let quotas = std::iter::once(&target.gate.quota);
        let reply = match write {
            // It ignores its arguments.
            Write::Reset => self.connection.run(script, |command| args(0, command), to).await,
            // In one round trip, first the count: a denial after the block would otherwise be added to it. Also of a
            // gate without a ban: another process may have one.
            Write::Block { for_us: 0 } if !target.gate.quota.is_in_flight() => {
                let unblocked = self.clock.run_in_span(&self.connection, script, quotas, args, to);
                let (removed, unblocked) = join(self.remove_denial_count(target, deadline), unblocked).await;
                removed.and(unblocked)
            }
            _ => self.clock.run_in_span(&self.connection, script, quotas, args, to).await,
        };
        match reply? {
            Value::Int(now_us) => {
                let now_us = now_us.unsigned_abs();
                Ok(Written { now_us, stamp_us: now_us })
            }
            Value::BulkString(failed) => Err(Error::from_script(&String::from_utf8_lossy(&failed))),
            reply => match reply.as_sequence() {
                Some(&[Value::Int(now_us), Value::Int(stamp_us)]) => {
                    Ok(Written { now_us: now_us.unsigned_abs(), stamp_us: stamp_us.unsigned_abs() })
                }
                _ => Err(unexpected(&reply)),
            },
        }
    }
}

impl RedisStore {
    /// Charges as [`Store::charge_used`](super::Store::charge_used) does.
    pub(crate) async fn charge_used(
        &self,
        target: &Target,
        units: u64,
        most: u64,
        deadline: Deadline,
    ) -> Result<UsedCharge, Error> {
        #[cfg(feature = "regions")]
        if let Some(gate) = &target.gate.replicated {
            let write = Write::Penalize { units: units.min(most) };
            let written =
                Box::pin(replicated::write(&self.connection, gate, target, write, deadline)).await?;
            // `most` bounds the charge, not the usage, which other regions change as well.
            return Ok(UsedCharge {
                charged: units.min(most),
                before: Before::default(),
                now_us: written.now_us,
            });
        }
        let quota = &target.gate.quota;
        let definition = quota.kind().definition();
        let script = definition.scripts.charge_used.as_ref().ok_or_else(|| not_written(definition.name))?;
        let args = |now_us, command: &mut Cmd| {
            command.arg(1).arg(&target.redis_key).arg(&quota.kind().args_at(now_us)).arg(units).arg(most);
        };
        let to = CallTarget { hash_tag: Some(target.hash_tag), deadline, is_repeatable: true };
        let quotas = std::iter::once(quota);
        let reply = self.clock.run_in_span(&self.connection, script, quotas, args, to).await?;
        used_charge_reply(reply)
    }

    /// Removes the count of a key's denials.
    async fn remove_denial_count(&self, target: &Target, deadline: Deadline) -> Result<(), Error> {
        let to = CallTarget { hash_tag: Some(target.hash_tag), deadline, is_repeatable: true };
        let args = |command: &mut Cmd| {
            command.arg(1).arg(target.denials_key());
        };
        self.connection.run(&script::RESET, args, to).await.map(drop)
    }
}

fn quotas<'a>(groups: &'a [&Group]) -> impl Iterator<Item = &'a Quota> + Clone {
    groups.iter().flat_map(|group| &group.items).map(|item| &item.target.gate.quota)
}

/// The hash tag of a call, and its kind.
type TaggedCall<'a> = (HashTag, CallKind<'a>);

/// The script of a call, and what all its groups share: the quota, the sender of the messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind<'a> {
    /// Groups of one key, all of this quota: `lua/take/take.lua`.
    Take(&'a Quota),
    /// Groups of any quotas: `lua/take/group.lua`.
    Group,
    /// Groups of one key of an in-flight limit, all of this quota: `lua/in_flight/acquire.lua`.
    Acquire(Sender<'a>, &'a Quota),
    /// Messages without acquires about keys of one in-flight limit, where the memory of Redis is full.
    Report(Sender<'a>, &'a Quota),
    /// A peek at a key of an in-flight limit, without the leases: see `peek_alone_args`.
    PeekAlone(&'a Quota),
    /// Groups of several keys that include keys of in-flight limits: `lua/in_flight/acquire_all.lua`.
    AcquireAll(Sender<'a>),
    /// Groups of any quotas with a key that has holds: `lua/reserve/reserve.lua`.
    Reserve,
    /// Groups of any quotas with a key of a gate with a ban: `lua/take/ban.lua`.
    Ban,
    /// Groups of replicated gates: `lua/regions/take.lua`; those of one key of this gate without a cut:
    /// `lua/regions/take_gate.lua`. While a peer is cut off, they have to pass a second state.
    #[cfg(feature = "regions")]
    Replicated {
        gate: Option<&'a Gossip>,
        /// The time of the cut, in µs since 1970 by the server's clock.
        cut_us: Option<u64>,
    },
}

impl<'a> CallKind<'a> {
    fn of(group: &'a Group) -> Self {
        #[cfg(feature = "regions")]
        if group.is_replicated() {
            let cut_us = replicated::cut_us(group);
            return Self::Replicated { gate: replicated::gate(group).filter(|_| cut_us.is_none()), cut_us };
        }
        let is_in_flight = group.items.iter().any(|item| item.target.gate.quota.is_in_flight());
        match &*group.items {
            [item] if is_in_flight && !is_shared(group) => {
                Self::Acquire(Sender::of(group), &item.target.gate.quota)
            }
            _ if is_in_flight => Self::AcquireAll(Sender::of(group)),
            _ if group.has_holds() => Self::Reserve,
            _ if group.has_bans() => Self::Ban,
            [item] => Self::Take(&item.target.gate.quota),
            _ => Self::Group,
        }
    }

    /// Returns the kind of a group that has [as few keys](Group::of_fewest_keys) as possible.
    fn of_fewest_keys(group: &'a Group) -> Self {
        match (Self::of(group), &*group.items) {
            (Self::Acquire(_, quota), [item]) if message_of(item).is_none() => Self::PeekAlone(quota),
            (kind, _) => kind,
        }
    }
}

/// Returns the call that all groups share, as they almost always do.
fn common_call(groups: &[Group]) -> Option<TaggedCall<'_>> {
    let first = groups.first()?;
    let call = (first.hash_tag(), CallKind::of(first));
    groups.iter().all(|group| (group.hash_tag(), CallKind::of(group)) == call).then_some(call)
}

/// Returns the error for a refund or a penalty of an in-flight limit.
fn not_written(algorithm: &str) -> Error {
    Error::config(format!("units of {algorithm} are held, not charged: release the permit instead"))
}

// The arguments of the scripts, in the order of the headers of their files.

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
fn take_args(quota: &Quota, now_us: u64, groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| &group.items);
    command.arg(items().count());
    for item in items() {
        command.arg(&item.target.redis_key);
    }
    command.arg(&quota.kind().args_at(now_us));
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
fn group_args(now_us: u64, groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| &group.items);
    command.arg(items().count());
    for item in items() {
        command.arg(&item.target.redis_key);
    }
    let quotas = Quotas::append(items().map(|item| &item.target), now_us, command);
    for group in groups {
        command.arg(group.n).arg(group.items.len());
        for item in &group.items {
            command.arg(quotas.number(&item.target)).arg(item.cost).arg(Optional(item.max_delay_us));
        }
    }
}

/// The quotas of a call, each once.
struct Quotas<'a>(Vec<&'a Quota>);

impl<'a> Quotas<'a> {
    /// Appends the number of quotas, then the algorithm and the numbers of each at `now_us`.
    fn append(targets: impl Iterator<Item = &'a Target>, now_us: u64, command: &mut Cmd) -> Self {
        let mut quotas: Vec<&Quota> = Vec::new();
        for target in targets {
            if !quotas.contains(&&target.gate.quota) {
                quotas.push(&target.gate.quota);
            }
        }
        command.arg(quotas.len());
        for quota in &quotas {
            command.arg(quota.algorithm()).arg(&quota.kind().args_at(now_us));
        }
        Self(quotas)
    }

    /// Returns the number of the quota, from 1.
    fn number(&self, target: &Target) -> usize {
        self.0.iter().position(|quota| **quota == target.gate.quota).unwrap_or(0) + 1
    }
}

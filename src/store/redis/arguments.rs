//! The arguments of the scripts, in the order of the headers of their files.

use redis::{Cmd, RedisWrite, ToRedisArgs};

use crate::quota::Quota;
use crate::store::take::Group;
use crate::store::target::Target;

/// A number, or no argument.
pub(super) struct Optional(pub(super) Option<u64>);

impl ToRedisArgs for Optional {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self.0 {
            Some(number) => number.write_redis_args(out),
            None => out.write_arg(b""),
        }
    }
}

/// Appends arguments in the order of the header of `take.lua`.
pub(super) fn take_args(quota: &Quota, now_us: u64, groups: &[&Group], command: &mut Cmd) {
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
pub(super) fn group_args(now_us: u64, groups: &[&Group], command: &mut Cmd) {
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
pub(super) struct Quotas<'a>(Vec<&'a Quota>);

impl<'a> Quotas<'a> {
    /// Appends the number of quotas, then the algorithm and the numbers of each at `now_us`.
    pub(super) fn append(targets: impl Iterator<Item = &'a Target>, now_us: u64, command: &mut Cmd) -> Self {
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
    pub(super) fn number(&self, target: &Target) -> usize {
        self.0.iter().position(|quota| **quota == target.gate.quota).unwrap_or(0) + 1
    }
}

//! Bans: the arguments and replies of the script `ban`.

use redis::Cmd;

use super::reply::Reply;
use super::{Optional, Quotas};
use crate::error::Error;
use crate::quota::ban::Ban;
use crate::store::take::{BeginningBan, Group, GroupItem};

/// Appends arguments in the order of the header of `ban.lua`.
pub(super) fn ban_args(now_us: u64, groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| &group.items);
    command.arg(items().map(|item| 1 + usize::from(item.ban().is_some())).sum::<usize>());
    for item in items() {
        command.arg(&item.target.redis_key);
        if item.ban().is_some() {
            command.arg(item.target.denials_key());
        }
    }
    let quotas = Quotas::append(items().map(|item| &item.target), now_us, command);
    let mut bans: Vec<&Ban> = Vec::new();
    for ban in items().filter_map(|item| item.ban()) {
        if !bans.contains(&ban) {
            bans.push(ban);
        }
    }
    command.arg(bans.len());
    for ban in &bans {
        command.arg(ban.denials()).arg(ban.within_us()).arg(ban.lasts_us());
    }
    let number = |ban: &Ban| bans.iter().position(|other| *other == ban).map_or(0, |index| index + 1);
    for group in groups {
        command.arg(group.n).arg(group.items.len()).arg(u8::from(group.is_grant()));
        for item in &group.items {
            command.arg(quotas.number(&item.target)).arg(item.cost).arg(Optional(item.max_delay_us));
            command.arg(item.ban().map_or(0, number));
        }
    }
}

impl Reply {
    /// Parses the end of a group of `ban`.
    pub(super) fn bans(&mut self, group: &Group) -> Result<Vec<BeginningBan>, Error> {
        let begins = |item: usize| {
            let ban = group.items.get(item).and_then(GroupItem::ban);
            // Of an item without a ban, `Outcome::is_possible` rejects it.
            BeginningBan { item, lasts_us: ban.map_or(0, Ban::lasts_us) }
        };
        Ok(self.listed(group)?.into_iter().map(begins).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use redis::Value;

    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::Quota;
    use crate::store::{Companion, GateInfo, Target};

    const HOUR: Duration = Duration::from_secs(3_600);
    const NOW_US: i64 = 1_577_836_800_000_000;

    /// Returns an item that admits two units per hour.
    fn item(gate: &str, ban: Option<Ban>) -> GroupItem {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let quota = Quota::fixed_window(2, HOUR);
        let gate = GateInfo::new(&keyspace, &KeyedHasher::default(), gate, quota).unwrap();
        let companion = ban.map(|ban| Box::new(Companion::Ban { ban, is_grant: false }));
        GroupItem { companion, ..GroupItem::new(Target::new(&Arc::new(gate), b"user:42", None), 1) }
    }

    #[test]
    fn ban_that_contradicts_its_row_is_an_impossible_reply() {
        let ban = Ban::after(2, HOUR);
        let items = [item("login", Some(ban)), item("other", None)];
        let group = Group { items: items.into_iter().collect(), n: 2 };
        let end_ms = NOW_US / 1_000 + 1;
        let (used, free) = ([2, end_ms], [0, end_ms]);
        let blocked = [-1 - 2, NOW_US + 1, end_ms];
        let is_possible = |k: i64, first: &[i64], bans: &[i64]| {
            let numbers = [&[NOW_US, -1 - k], first, &free, &[bans.len() as i64], bans].concat();
            let reply = Value::Array(numbers.into_iter().map(Value::Int).collect());
            Reply::new(reply).outcomes(&[&group]).remove(0).unwrap().is_possible(&group)
        };
        assert!(is_possible(0, &used, &[1]));
        assert!(!is_possible(0, &used, &[2]), "an item without a ban");
        assert!(!is_possible(0, &used, &[3]), "no item");
        assert!(!is_possible(0, &used, &[1, 1]), "twice");
        assert!(!is_possible(2, &free, &[1]), "nothing was denied");
        assert!(is_possible(0, &blocked, &[]));
        assert!(!is_possible(0, &blocked, &[1]), "the block denied");
    }
}

//! Bans: the arguments and replies of the script `ban`.

use redis::Cmd;

use super::arguments::{Optional, Quotas};
use super::reply::Reply;
use crate::ban::Ban;
use crate::error::Error;
use crate::store::take::{BeginningBan, Group};

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
        command.arg(ban.after).arg(ban.within_us()).arg(ban.lasts_us());
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
            let lasts_us = group.items.get(item)?.ban()?.lasts_us();
            Some(BeginningBan { item, lasts_us })
        };
        Ok(self.listed(group)?.into_iter().filter_map(begins).collect())
    }
}

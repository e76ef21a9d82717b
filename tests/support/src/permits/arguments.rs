//! The arguments of the scripts, in the order of the headers of their files.

use tidegate::Quota;

use super::call::{Group, Item, Limit, Message};

/// Returns the limit of all groups, if each is one permit of this limit and of one holder, with its own key.
pub(super) fn uniform_limit(groups: &[Group]) -> Option<Limit> {
    if messages(groups).flatten().any(|message| message.keep.is_none()) {
        return None;
    }
    let mut limits = groups.iter().map(|group| match &group.items[..] {
        [Item::Permit { limit, .. }] => Some(*limit),
        _ => None,
    });
    let first = limits.next()??;
    limits.all(|limit| limit == Some(first)).then_some(first)
}

fn messages(groups: &[Group]) -> impl Iterator<Item = Option<&Message>> {
    groups.iter().flat_map(Group::permits).map(|(_, message)| message)
}

/// The holder's name and the end of its lease, which begin the arguments.
fn holder_args(groups: &[Group]) -> Vec<String> {
    match messages(groups).flatten().next() {
        Some(message) => vec![message.holder.clone(), message.lease_end_us.to_string()],
        None => vec![String::new(), "0".to_owned()],
    }
}

fn number_and_keep(message: Option<&Message>) -> [String; 2] {
    let keep = |message: &Message| message.keep.map_or_else(String::new, |keep| keep.to_string());
    message.map_or(["0".to_owned(), "0".to_owned()], |message| [message.number.to_string(), keep(message)])
}

/// Returns the arguments of `acquire.lua`.
pub(super) fn acquire_args(groups: &[Group], limit: Limit) -> Vec<String> {
    let mut args = holder_args(groups);
    args.push(limit.units.to_string());
    args.extend(messages(groups).flat_map(number_and_keep));
    let mut wants: Vec<[u64; 2]> = groups.iter().map(|group| [group.n, group.items[0].cost()]).collect();
    if wants.iter().all(|want| *want == wants[0]) {
        wants.truncate(1);
    }
    if wants != [[1, 1]] {
        args.extend(wants.into_iter().flatten().map(|number| number.to_string()));
    }
    args
}

/// Returns the arguments of `acquire_all.lua`, with one quota for each item. A repeated quota changes nothing.
pub(super) fn acquire_all_args(groups: &[Group], bucket: &Quota) -> Vec<String> {
    let items = || groups.iter().flat_map(|group| &group.items);
    let mut args = holder_args(groups);
    args.push(items().count().to_string());
    for item in items() {
        match item {
            Item::Permit { limit, .. } => {
                args.push("in_flight".to_owned());
                args.extend([limit.units, 0, 0, 0].map(|number| number.to_string()));
            }
            Item::Bucket { .. } => {
                args.push("token_bucket".to_owned());
                args.extend(bucket.kind().args().map(|number| number.to_string()));
            }
        }
    }
    let mut quota = 0;
    for group in groups {
        args.extend([group.n.to_string(), group.items.len().to_string()]);
        for item in &group.items {
            quota += 1;
            args.extend([quota.to_string(), item.cost().to_string()]);
            match item {
                Item::Permit { message, .. } => {
                    args.extend(number_and_keep(message.as_ref()));
                }
                Item::Bucket { .. } => args.push(String::new()),
            }
        }
    }
    args
}

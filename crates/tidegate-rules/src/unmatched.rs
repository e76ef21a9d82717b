//! Finds lists of actions whose descriptors no rule can match.

use std::ptr;

use super::mapping::{Action, Match, Source};
use super::tree::{Branch, Level};
use crate::tree::no_match;

/// Returns the index of the action that excludes every rule, and the reason. `budget` bounds the visited
/// branches: a file with many actions and many rules must not delay loading.
pub(super) fn unmatched<'r>(
    top: &'r Level,
    actions: &'r [Action],
    budget: &mut usize,
) -> Option<(usize, String)> {
    // The levels that the entries so far can lead to, each with whether a rule ends there.
    let mut reached: Vec<(&'r Level, bool)> = vec![(top, false)];
    for (at, action) in actions.iter().enumerate() {
        let next = reached.iter().flat_map(|(level, _)| branches(level, action));
        let mut next: Vec<_> =
            next.take(*budget).map(|branch| (&branch.below, branch.rule.is_some())).collect();
        *budget -= next.len();
        if *budget == 0 {
            return None;
        }
        if next.is_empty() && !action.skip_if_absent {
            let (level, value) = (reached[0].0, constant(action).unwrap_or_default());
            return Some((at, no_match(level, &action.key, value)));
        }
        if action.skip_if_absent {
            next.append(&mut reached);
            next.sort_by_key(|(level, _)| ptr::from_ref(*level));
            next.dedup_by(|a, b| ptr::eq(a.0, b.0));
        }
        reached = next;
    }
    let is_limited = reached.iter().any(|(_, ends_at_rule)| *ends_at_rule);
    let last = actions.len().checked_sub(1).filter(|_| !is_limited)?;
    Some((last, format!("no `rate_limit` for descriptors that end with `{}`", actions[last].key)))
}

/// Returns the value that the action always yields, if there is one.
fn constant(action: &Action) -> Option<&str> {
    match &action.source {
        Source::Constant(value) | Source::Match(Match { value, .. }) => Some(value),
        _ => None,
    }
}

fn branches<'r>(level: &'r Level, action: &'r Action) -> Box<dyn Iterator<Item = &'r Branch> + 'r> {
    match constant(action) {
        Some(value) => Box::new(level.step(&action.key, value.as_bytes()).into_iter()),
        None => Box::new(level.branches(&action.key)),
    }
}

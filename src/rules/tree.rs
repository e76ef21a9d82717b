//! The rules of a domain, by the keys and values that lead to them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use smallvec::SmallVec;

use super::descriptor::Entry;
use super::rule::Pattern;

/// Beside that to which it leads: a look elsewhere takes longer than to compare it.
type Text = SmallVec<[u8; 16]>;

/// What can come next. Few keys stand on one level as a rule, so that comparing is quicker than hashing.
#[derive(Debug, Default)]
pub(super) struct Level(BTreeMap<Text, Values>);

#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Text, Branch>,
    /// By what stands before the `*`.
    prefixes: BTreeMap<Text, Branch>,
    any: Option<Box<Branch>>,
}

#[derive(Debug)]
pub(super) struct Branch {
    /// The rule for what ends here, by its number.
    pub(super) rule: Option<usize>,
    pub(super) below: Level,
    pub(super) file: Arc<str>,
    pub(super) line: usize,
}

impl Level {
    pub(super) fn get(&self, key: &str, pattern: &Pattern) -> Option<&Branch> {
        let values = self.0.get(key.as_bytes())?;
        match pattern {
            Pattern::Exact(value) => values.exact.get(value.as_bytes()),
            Pattern::Prefix(prefix) => values.prefixes.get(prefix.as_bytes()),
            Pattern::Any => values.any.as_deref(),
        }
    }

    pub(super) fn insert(&mut self, key: &str, pattern: &Pattern, branch: Branch) {
        let values = self.0.entry(key.as_bytes().into()).or_default();
        match pattern {
            Pattern::Exact(value) => drop(values.exact.insert(value.as_bytes().into(), branch)),
            Pattern::Prefix(prefix) => drop(values.prefixes.insert(prefix.as_bytes().into(), branch)),
            Pattern::Any => values.any = Some(Box::new(branch)),
        }
    }

    /// The rule for exactly these entries. On each level the most specific
    /// branch is taken, and no other is tried where that leads nowhere.
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<usize> {
        let (last, before) = entries.split_last()?;
        let mut level = self;
        for entry in before {
            level = &level.step(entry)?.below;
        }
        level.step(last)?.rule
    }

    /// All that an entry would be met by, the most specific first: what is taken, and what is passed over.
    pub(super) fn candidates(&self, (key, value): &Entry<'_>) -> Vec<(Pattern, &Branch)> {
        let Some(values) = self.0.get(key.as_bytes()) else { return Vec::new() };
        let exact = values.exact.get_key_value(&**value);
        let prefixes = values.prefixes.iter().rev().filter(|(prefix, _)| value.starts_with(prefix));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
        let exact = exact.map(|(value, branch)| (Pattern::Exact(text(value)), branch));
        let prefixes = prefixes.map(|(prefix, branch)| (Pattern::Prefix(text(prefix)), branch));
        let any = values.any.as_deref().map(|branch| (Pattern::Any, branch));
        exact.into_iter().chain(prefixes).chain(any).collect()
    }

    /// What stands here: keys, and with one of them the values, as they are written.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        // Never anything else, since they were made from text.
        self.0.keys().map(|key| std::str::from_utf8(key).unwrap_or_default())
    }

    pub(super) fn values(&self, key: &str) -> Vec<String> {
        let Some(values) = self.0.get(key.as_bytes()) else { return Vec::new() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let prefixes = values.prefixes.keys().map(|prefix| text(prefix) + "*");
        let mut all: Vec<String> = values.exact.keys().map(|value| text(value)).chain(prefixes).collect();
        all.sort();
        all
    }

    fn step(&self, (key, value): &Entry<'_>) -> Option<&Branch> {
        let values = self.0.get(key.as_bytes())?;
        if let Some(branch) = values.exact.get(&**value) {
            return Some(branch);
        }
        longest_prefix(&values.prefixes, value).or(values.any.as_deref())
    }
}

/// The prefixes of a value are what it begins with, so each that is left to find
/// comes at or before what the value and the last one tried have in common.
fn longest_prefix<'b>(prefixes: &'b BTreeMap<Text, Branch>, value: &[u8]) -> Option<&'b Branch> {
    let mut rest = value;
    loop {
        let (prefix, branch) = prefixes.range::<[u8], _>((Unbounded, Included(rest))).next_back()?;
        let common = prefix.iter().zip(rest).take_while(|(a, b)| a == b).count();
        if common == prefix.len() {
            return Some(branch);
        }
        rest = &rest[..common];
    }
}

//! The rules of a domain as a tree of keys and values.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use smallvec::SmallVec;

use super::descriptor::DescriptorEntry;
use super::rule::Pattern;

/// A key or value, stored inline: following a pointer takes longer than comparing the bytes.
type InlineBytes = SmallVec<[u8; 16]>;

/// The keys that can come next. A level usually has few keys, so comparing them is faster than hashing.
#[derive(Debug, Default)]
pub(super) struct Level(BTreeMap<InlineBytes, Values>);

#[derive(Debug, Default)]
struct Values {
    exact: HashMap<InlineBytes, Branch>,
    /// The branches of wildcard values, by the text before the `*`.
    prefixes: BTreeMap<InlineBytes, Branch>,
    any: Option<Box<Branch>>,
}

#[derive(Debug)]
pub(super) struct Branch {
    /// The index of the rule for descriptors that end here.
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

    /// Returns the index of the rule for exactly these entries. Follows the most specific branch on each
    /// level, and does not backtrack if that branch has no rule.
    pub(super) fn find(&self, entries: &[DescriptorEntry<'_>]) -> Option<usize> {
        let (last, before) = entries.split_last()?;
        let mut level = self;
        for entry in before {
            level = &level.step(entry)?.below;
        }
        level.step(last)?.rule
    }

    /// Returns all branches that match an entry, the most specific first. `find` follows only the first.
    pub(super) fn candidates(&self, (key, value): &DescriptorEntry<'_>) -> Vec<(Pattern, &Branch)> {
        let Some(values) = self.0.get(key.as_bytes()) else { return Vec::new() };
        let exact = values.exact.get_key_value(&**value);
        let prefixes = values.prefixes.iter().rev().filter(|(prefix, _)| value.starts_with(prefix));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
        let exact = exact.map(|(value, branch)| (Pattern::Exact(text(value)), branch));
        let prefixes = prefixes.map(|(prefix, branch)| (Pattern::Prefix(text(prefix)), branch));
        let any = values.any.as_deref().map(|branch| (Pattern::Any, branch));
        exact.into_iter().chain(prefixes).chain(any).collect()
    }

    /// Returns the keys of this level.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        // Every key was made from a string, so it is valid UTF-8.
        self.0.keys().map(|key| std::str::from_utf8(key).unwrap_or_default())
    }

    /// Returns the values of a key as they are written in the file, sorted.
    pub(super) fn values(&self, key: &str) -> Vec<String> {
        let Some(values) = self.0.get(key.as_bytes()) else { return Vec::new() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let prefixes = values.prefixes.keys().map(|prefix| text(prefix) + "*");
        let mut all: Vec<String> = values.exact.keys().map(|value| text(value)).chain(prefixes).collect();
        all.sort();
        all
    }

    fn step(&self, (key, value): &DescriptorEntry<'_>) -> Option<&Branch> {
        let values = self.0.get(key.as_bytes())?;
        if let Some(branch) = values.exact.get(&**value) {
            return Some(branch);
        }
        longest_prefix(&values.prefixes, value).or(values.any.as_deref())
    }
}

/// Returns the branch of the longest prefix of `value`.
///
/// Every prefix of `value` that is not yet ruled out sorts at or before the common part of `value` and the
/// last candidate. Each round shortens `rest` to that part, and the next candidate is the greatest entry up
/// to `rest`.
fn longest_prefix<'b>(prefixes: &'b BTreeMap<InlineBytes, Branch>, value: &[u8]) -> Option<&'b Branch> {
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

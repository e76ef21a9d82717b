//! The rules of a domain as a tree of keys and values.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use ipnet::IpNet;
use smallvec::SmallVec;

use super::config_error::similar_name;
use super::descriptor::DescriptorEntry;
use super::networks::Networks;
use super::rule::Pattern;
use super::wildcard::Wildcard;

/// A key or value, stored inline: following a pointer takes longer than comparing the bytes.
type InlineBytes = SmallVec<[u8; 16]>;

/// The keys that can come next. A level usually has one key or few, so comparing them is faster than hashing.
#[derive(Debug, Default)]
pub(super) struct Level {
    first: Option<Box<(InlineBytes, Values)>>,
    /// Present if there is a second key: a map has room for 11 keys, far more memory than most levels need.
    #[expect(clippy::box_collection, reason = "most levels are empty, and each rule has one")]
    others: Option<Box<BTreeMap<InlineBytes, Values>>>,
}

#[derive(Debug, Default)]
struct Values {
    /// The table of a map is up to half empty, and twice as large while it grows.
    exact: HashMap<InlineBytes, Box<Branch>>,
    /// The branches of values whose only `*` is at the end, by the text before it.
    prefixes: BTreeMap<InlineBytes, Branch>,
    /// The branches of other values with `*`, by [`Rank`].
    wildcards: Vec<(Arc<Wildcard>, Branch)>,
    /// Boxed: most keys have none.
    networks: Option<Box<Networks<Branch>>>,
    any: Option<Box<Branch>>,
}

/// The precedence of a pattern: more literal bytes first, then the first in the files.
type Rank = (Reverse<usize>, u32);

#[derive(Debug)]
pub(super) struct Branch {
    /// The index of the rule for descriptors that end here.
    pub(super) rule: Option<u32>,
    pub(super) below: Level,
    /// The number of earlier branches with the same key on the same level.
    order: u32,
    pub(super) file: Arc<str>,
    pub(super) line: u32,
}

impl Branch {
    pub(super) fn new(rule: Option<u32>, file: Arc<str>, line: u32) -> Self {
        Self { rule, below: Level::default(), order: 0, file, line }
    }
}

impl Level {
    fn values_of(&self, key: &str) -> Option<&Values> {
        match &self.first {
            Some(first) if *first.0 == *key.as_bytes() => Some(&first.1),
            _ => self.others.as_ref()?.get(key.as_bytes()),
        }
    }

    /// Returns the values of a key. Adds the key if it is absent.
    fn values_mut(&mut self, key: &str) -> &mut Values {
        let new = || Box::new((key.as_bytes().into(), Values::default()));
        let first = self.first.get_or_insert_with(new);
        if *first.0 == *key.as_bytes() {
            return &mut first.1;
        }
        self.others.get_or_insert_default().entry(key.as_bytes().into()).or_default()
    }

    pub(super) fn get(&self, key: &str, pattern: &Pattern) -> Option<&Branch> {
        let values = self.values_of(key)?;
        match pattern {
            Pattern::Exact(value) => values.exact.get(value.as_bytes()).map(|branch| &**branch),
            Pattern::Prefix(prefix) => values.prefixes.get(prefix.as_bytes()),
            Pattern::Wildcard(wildcard) => {
                values.wildcards.iter().find(|(other, _)| other == wildcard).map(|(_, branch)| branch)
            }
            Pattern::Network(network) => values.networks.as_ref()?.get(*network),
            Pattern::Any => values.any.as_deref(),
        }
    }

    /// Adds a branch for the networks of a key.
    pub(super) fn insert_networks(&mut self, key: &str, networks: &[IpNet], branch: Branch) {
        self.values_mut(key).networks.get_or_insert_default().insert(networks, branch);
    }

    /// Returns the number of networks of a key.
    pub(super) fn networks(&self, key: &str) -> usize {
        self.values_of(key).and_then(|values| values.networks.as_ref()).map_or(0, |networks| networks.len())
    }

    pub(super) fn insert(&mut self, key: &str, pattern: &Pattern, mut branch: Branch) {
        let values = self.values_mut(key);
        branch.order = (values.exact.len() + values.prefixes.len() + values.wildcards.len()) as u32;
        match pattern {
            Pattern::Exact(value) => drop(values.exact.insert(value.as_bytes().into(), Box::new(branch))),
            Pattern::Prefix(prefix) => drop(values.prefixes.insert(prefix.as_bytes().into(), branch)),
            Pattern::Wildcard(wildcard) => {
                let rank = rank(wildcard.literal_bytes(), &branch);
                let is_before = |(other, branch): &(Arc<Wildcard>, Branch)| {
                    self::rank(other.literal_bytes(), branch) < rank
                };
                let at = values.wildcards.partition_point(is_before);
                values.wildcards.insert(at, (wildcard.clone(), branch));
            }
            Pattern::Network(network) => {
                values.networks.get_or_insert_default().insert(&[*network], branch);
            }
            Pattern::Any => values.any = Some(Box::new(branch)),
        }
    }

    /// Returns the number of values of a key that every lookup may have to try.
    pub(super) fn wildcards(&self, key: &str) -> usize {
        self.values_of(key).map_or(0, |values| values.wildcards.len())
    }

    /// Returns the branch of an earlier value with `*` of a key, over which this pattern has precedence, though it is not the
    /// first, for the values that match both. Each comparison takes one from `budget`.
    pub(super) fn less_specific(&self, key: &str, pattern: &Pattern, budget: &mut usize) -> Option<&Branch> {
        let values = self.values_of(key)?;
        let (literal_bytes, (prefix, suffix)) = match pattern {
            Pattern::Prefix(prefix) => (prefix.len(), (prefix.as_bytes(), &[][..])),
            Pattern::Wildcard(wildcard) => (wildcard.literal_bytes(), wildcard.ends()),
            Pattern::Exact(_) | Pattern::Network(_) | Pattern::Any => return None,
        };
        let prefixes = values.prefixes.iter();
        let prefixes = prefixes.map(|(prefix, branch)| (prefix.len(), (&**prefix, &[][..]), branch));
        let wildcards = values.wildcards.iter();
        let wildcards =
            wildcards.map(|(wildcard, branch)| (wildcard.literal_bytes(), wildcard.ends(), branch));
        // The texts between two `*` exclude no value: some values have those of both patterns, one after the other.
        let overlaps = |(other_prefix, other_suffix): (&[u8], &[u8])| {
            (prefix.starts_with(other_prefix) || other_prefix.starts_with(prefix))
                && (suffix.ends_with(other_suffix) || other_suffix.ends_with(suffix))
        };
        let mut compared = prefixes.chain(wildcards).take(*budget).inspect(|_| *budget -= 1);
        let is_less =
            |(bytes, ends, _): &(usize, (&[u8], &[u8]), &Branch)| *bytes < literal_bytes && overlaps(*ends);
        compared.find(is_less).map(|(_, _, branch)| branch)
    }

    /// Returns the index of the rule for exactly these entries. Follows the most specific branch on each
    /// level, and does not backtrack if that branch has no rule.
    pub(super) fn find(&self, entries: &[DescriptorEntry<'_>]) -> Option<usize> {
        let ((key, value), before) = entries.split_last()?;
        let mut level = self;
        for (key, value) in before {
            level = &level.step(key, value)?.below;
        }
        level.step(key, value)?.rule.map(|index| index as usize)
    }

    /// Returns all branches that match an entry, the most specific first. `find` follows only the first.
    pub(super) fn candidates(&self, (key, value): &DescriptorEntry<'_>) -> Vec<(Pattern, &Branch)> {
        let Some(values) = self.values_of(key) else { return Vec::new() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
        let exact = values.exact.get_key_value(&**value);
        let exact = exact.map(|(value, branch)| (Pattern::Exact(text(value)), &**branch));
        let prefixes = values.prefixes.iter().filter(|(prefix, _)| value.starts_with(prefix));
        let prefixes = prefixes
            .map(|(prefix, branch)| (rank(prefix.len(), branch), Pattern::Prefix(text(prefix)), branch));
        let wildcards = values.wildcards.iter().filter(|(wildcard, _)| wildcard.matches(value));
        let wildcards = wildcards.map(|(wildcard, branch)| {
            (rank(wildcard.literal_bytes(), branch), Pattern::Wildcard(wildcard.clone()), branch)
        });
        let mut patterns: Vec<_> = prefixes.chain(wildcards).collect();
        patterns.sort_by_key(|(rank, _, _)| *rank);
        let patterns = patterns.into_iter().map(|(_, pattern, branch)| (pattern, branch));
        let any = values.any.as_deref().map(|branch| (Pattern::Any, branch));
        let networks = values.networks.iter().flat_map(|networks| networks.containing(value));
        let networks = networks.map(|(network, branch)| (Pattern::Network(network), branch));
        exact.into_iter().chain(networks).chain(patterns).chain(any).collect()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the keys of this level, sorted.
    pub(super) fn keys(&self) -> Vec<&str> {
        let others = self.others.iter().flat_map(|others| others.keys());
        let keys = self.first.iter().map(|first| &first.0).chain(others);
        // Every key was made from a string, so it is valid UTF-8.
        let mut keys: Vec<&str> = keys.map(|key| std::str::from_utf8(key).unwrap_or_default()).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the values of a key as they are written in the file, sorted.
    pub(super) fn values(&self, key: &str) -> Vec<String> {
        let Some(values) = self.values_of(key) else { return Vec::new() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let prefixes = values.prefixes.keys().map(|prefix| text(prefix) + "*");
        let wildcards = values.wildcards.iter().map(|(wildcard, _)| wildcard.text().to_owned());
        let exact = values.exact.keys().map(|value| text(value));
        let networks = values.networks.iter().flat_map(|networks| networks.networks());
        let networks = networks.map(ToString::to_string);
        let mut all: Vec<String> = exact.chain(prefixes).chain(wildcards).chain(networks).collect();
        all.sort();
        all
    }

    /// Returns the branches of a key, whatever their values.
    pub(super) fn branches(&self, key: &str) -> impl Iterator<Item = &Branch> {
        self.values_of(key).into_iter().flat_map(|values| {
            let wildcards = values.wildcards.iter().map(|(_, branch)| branch);
            let patterns = values.prefixes.values().chain(wildcards);
            let networks = values.networks.iter().flat_map(|networks| networks.branches());
            let exact = values.exact.values().map(|branch| &**branch);
            exact.chain(networks).chain(patterns).chain(values.any.as_deref())
        })
    }

    /// Returns the most specific branch for an entry.
    pub(super) fn step(&self, key: &str, value: &[u8]) -> Option<&Branch> {
        let values = self.values_of(key)?;
        if let Some(branch) = values.exact.get(value) {
            return Some(branch);
        }
        if let Some((_, branch)) = values.networks.as_ref().and_then(|all| all.containing(value).next()) {
            return Some(branch);
        }
        let prefix = longest_prefix(&values.prefixes, value);
        let prefix_rank = prefix.map(|(prefix, branch)| rank(prefix.len(), branch));
        let mut wildcards = values.wildcards.iter().take_while(|(wildcard, branch)| {
            prefix_rank.is_none_or(|prefix| rank(wildcard.literal_bytes(), branch) < prefix)
        });
        let wildcard = wildcards.find(|(wildcard, _)| wildcard.matches(value)).map(|(_, branch)| branch);
        wildcard.or(prefix.map(|(_, branch)| branch)).or(values.any.as_deref())
    }
}

const fn rank(literal_bytes: usize, branch: &Branch) -> Rank {
    (Reverse(literal_bytes), branch.order)
}

/// Returns the longest prefix of `value` and its branch.
///
/// Every prefix of `value` that is not yet ruled out sorts at or before the common part of `value` and the
/// last candidate. Each round shortens `rest` to that part, and the next candidate is the greatest entry up
/// to `rest`.
fn longest_prefix<'b>(
    prefixes: &'b BTreeMap<InlineBytes, Branch>,
    value: &[u8],
) -> Option<(&'b InlineBytes, &'b Branch)> {
    let mut rest = value;
    loop {
        let (prefix, branch) = prefixes.range::<[u8], _>((Unbounded, Included(rest))).next_back()?;
        let common = prefix.iter().zip(rest).take_while(|(a, b)| a == b).count();
        if common == prefix.len() {
            return Some((prefix, branch));
        }
        rest = &rest[..common];
    }
}

// Texts that list the known names beside an unknown one.

/// The maximum number of keys or values that a message lists.
const MAX_NAMED: usize = 8;

/// Returns why no branch of the level matches an entry.
pub(super) fn no_match(level: &Level, key: &str, value: &str) -> String {
    let keys = level.keys();
    if keys.is_empty() {
        return format!("no match for the key `{key}`: no rule continues at this level");
    }
    if !keys.contains(&key) {
        return format!("no match for the key `{key}`{}", available(key, &keys));
    }
    let values = level.values(key);
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    format!("no match for the value `{value}` of `{key}`{}", available(value, &values))
}

/// Returns the known names and the one that is similar to `wanted`.
pub(super) fn available(wanted: &str, known: &[&str]) -> String {
    let near = similar_name(wanted, known.iter().copied());
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    format!("; available: {}{near}", listed(known))
}

/// Returns the first names, and the number of the others.
pub(super) fn listed(names: &[&str]) -> String {
    let named: Vec<String> = names.iter().take(MAX_NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(MAX_NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

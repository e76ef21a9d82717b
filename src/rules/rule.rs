//! One rule: where it stands, what it limits, and what its counts are called.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::descriptor::Descriptor;
use crate::lease::Lease;
use crate::limiter::OnFailure;
use crate::quota::Quota;

/// The longest name of a gate.
const LONGEST: usize = 64;

/// What a file says of the descriptors that end at one place.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) domain: Box<str>,
    pub(super) steps: Box<[Step]>,
    pub(super) settings: Settings,
    pub(super) shadow: bool,
    pub(super) detailed_metric: bool,
    pub(super) file: Arc<str>,
    pub(super) line: usize,
    path: Arc<str>,
}

/// What stands in its `rate_limit`.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) name: Option<Arc<str>>,
    pub(super) replaces: Vec<String>,
    pub(super) limit: Limit,
    pub(super) tiers: Vec<(String, Limit)>,
    pub(super) cost: u64,
    pub(super) on_failure: Option<OnFailure>,
    pub(super) lease: Option<Lease>,
}

/// How much passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Unlimited,
    /// Nothing, and who asks is told to come back after so long.
    Nothing(Duration),
    Quota(Quota),
}

/// One entry that a descriptor has to have.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) key: Box<str>,
    pub(super) pattern: Pattern,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Exact(Box<str>),
    /// What stands before the `*`.
    Prefix(Box<str>),
    Any,
}

impl Pattern {
    pub(super) fn new(value: &str) -> Self {
        match value.strip_suffix('*') {
            _ if value.is_empty() => Self::Any,
            Some(prefix) => Self::Prefix(prefix.into()),
            None => Self::Exact(value.into()),
        }
    }

    /// As it stands in a path: `_login`, `_api*`, or nothing.
    fn append(&self, out: &mut String) {
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Exact(value) => write!(out, "_{value}"),
            Self::Prefix(prefix) => write!(out, "_{prefix}*"),
            Self::Any => Ok(()),
        };
    }
}

/// # What it is
impl Rule {
    /// Where it stands, in the words of Envoy's service:
    /// `auth.auth_type_login`, `messaging.message_type_marketing.to_number`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The `name` of its `rate_limit`, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.settings.name.as_deref()
    }

    /// What clients read: its name, or its path.
    #[cfg(feature = "tower")]
    pub(crate) fn shown(&self) -> &Arc<str> {
        self.settings.name.as_ref().unwrap_or(&self.path)
    }

    /// What it limits to; `None` where it is unlimited or denies all.
    #[must_use]
    pub const fn quota(&self) -> Option<Quota> {
        match self.settings.limit {
            Limit::Quota(quota) => Some(quota),
            Limit::Unlimited | Limit::Nothing(_) => None,
        }
    }

    /// Everything passes.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        matches!(self.settings.limit, Limit::Unlimited)
    }

    /// It decides and counts, and never denies.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// The file and the line of its `key`.
    #[must_use]
    pub fn origin(&self) -> (&str, usize) {
        (&self.file, self.line)
    }

    /// The name of the gate that counts for it: it follows from the domain and
    /// the keys and values on the way alone, so that counts are kept when
    /// anything else in the file changes. `auth.auth_type-login` where all of these are short and
    /// hold no more than `a-z0-9_`, else what is legible of them and a hash.
    #[must_use]
    pub fn gate_name(&self) -> String {
        let name = self.steps.iter().fold(self.domain.to_string(), |mut name, step| {
            name = name + "." + &step.key;
            match &step.pattern {
                Pattern::Exact(value) => name + "-" + value,
                Pattern::Prefix(prefix) => name + "-" + prefix,
                Pattern::Any => name,
            }
        });
        match self.is_legible() && name.len() <= LONGEST {
            true => name,
            false => self.hashed(&name),
        }
    }

    /// Whether its parts can be told from the name: no part holds what stands
    /// between two, and none begins as a hash does.
    fn is_legible(&self) -> bool {
        let is_plain = |text: &str, more: &str| {
            let is_letter =
                |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_') || more.contains(byte as char);
            !text.is_empty() && text.bytes().all(is_letter)
        };
        let is_legible = |step: &Step| {
            is_plain(&step.key, "")
                && match &step.pattern {
                    Pattern::Exact(value) => is_plain(value, "-"),
                    Pattern::Prefix(_) => false,
                    Pattern::Any => true,
                }
        };
        is_plain(&self.domain, "-") && self.steps.iter().all(is_legible)
    }

    /// `.-` stands in no legible name, since no key is empty.
    fn hashed(&self, name: &str) -> String {
        let mut hash = Sha256::new();
        let mut add = |kind: u8, text: &str| {
            hash.update([kind]);
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(0, &self.domain);
        for step in &self.steps {
            add(1, &step.key);
            match &step.pattern {
                Pattern::Exact(value) => add(2, value),
                Pattern::Prefix(prefix) => add(3, prefix),
                Pattern::Any => {}
            }
        }
        let mut out: String = name
            .chars()
            .take(LONGEST - 22)
            .map(|letter| match letter.to_ascii_lowercase() {
                letter @ ('a'..='z' | '0'..='9' | '_' | '-' | '.') => letter,
                _ => '_',
            })
            .collect();
        out.push_str(".-");
        for byte in &hash.finalize()[..10] {
            let _ = write!(out, "{byte:02x}");
        }
        out
    }
}

/// # For one request
impl Rule {
    pub(super) fn new(
        domain: &str,
        steps: &[Step],
        settings: Settings,
        (shadow, detailed_metric): (bool, bool),
        (file, line): (Arc<str>, usize),
    ) -> Self {
        let mut path = domain.to_owned();
        for step in steps {
            path.push('.');
            path.push_str(&step.key);
            step.pattern.append(&mut path);
        }
        let (domain, steps, path) = (domain.into(), steps.into(), path.into());
        Self { domain, steps, settings, shadow, detailed_metric, file, line, path }
    }

    /// The limit for a tier, and its place: 0 is that of all others.
    pub(super) fn limit(&self, tier: Option<&str>) -> (usize, Limit) {
        let found = tier.and_then(|tier| self.settings.tiers.iter().position(|(name, _)| name == tier));
        found.map_or((0, self.settings.limit), |at| (at + 1, self.settings.tiers[at].1))
    }

    /// Whose count it is: the values that the rule leaves open, so that no two
    /// descriptors with one rule have the same key unless they share a count.
    pub(super) fn key(&self, descriptor: &Descriptor<'_>) -> Vec<u8> {
        let is_open = |step: &Step| !matches!(step.pattern, Pattern::Exact(_)) && !step.share_threshold;
        let open = self.steps.iter().zip(&descriptor.entries).filter(|(step, _)| is_open(step));
        let mut values = open.map(|(_, (_, value))| &**value);
        let Some(first) = values.next() else { return Vec::new() };
        let Some(second) = values.next() else { return first.to_vec() };
        let mut key = Vec::new();
        let mut append = |value: &[u8]| {
            for &byte in value {
                if matches!(byte, b'|' | b'\\') {
                    key.push(b'\\');
                }
                key.push(byte);
            }
            key.push(b'|');
        };
        append(first);
        append(second);
        values.for_each(append);
        key.pop();
        key
    }

    /// The name to count under, where it is not the path.
    pub(super) fn metric(&self, descriptor: &Descriptor<'_>) -> Option<String> {
        let shows_value = |step: &Step| match (&step.pattern, step.share_threshold) {
            (Pattern::Exact(_), _) | (_, true) => false,
            (_, false) => self.detailed_metric || step.value_to_metric,
        };
        if !self.steps.iter().any(shows_value) {
            return None;
        }
        let mut name = self.domain.to_string();
        for (step, (_, value)) in self.steps.iter().zip(&descriptor.entries) {
            name.push('.');
            name.push_str(&step.key);
            match shows_value(step) {
                true if value.is_empty() => {}
                true => {
                    let _ = write!(name, "_{}", String::from_utf8_lossy(value));
                }
                false => step.pattern.append(&mut name),
            }
        }
        Some(name)
    }
}

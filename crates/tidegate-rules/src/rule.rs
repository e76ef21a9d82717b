//! A rule: its position in the file, its limit, and the name and keys of its counts.

use std::borrow::Cow;
use std::fmt::Write;
use std::iter;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tidegate::redact::visible;
use tidegate::{Ban, Lease, OnFailure, Quota};

use super::descriptor::Descriptor;
use super::limit::Limit;
use super::wildcard::Wildcard;

/// The maximum length of a gate name in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The settings of a file for the descriptors that end at one entry.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Shared by the rules of a document.
    pub(super) domain: Arc<str>,
    pub(super) steps: Box<[Step]>,
    /// Shared by rules with equal settings.
    pub(super) settings: Arc<LimitSettings>,
    pub(super) marks: RuleMarks,
    pub(super) file: Arc<str>,
    pub(super) line: u32,
    path: Arc<str>,
}

/// The settings of a rule's descriptor, beside its `rate_limit`.
#[derive(Clone, Debug)]
pub(super) struct RuleMarks {
    pub(super) shadow: bool,
    pub(super) quota: bool,
    pub(super) charges_used: bool,
    pub(super) detailed_metric: bool,
    pub(super) metadata: Option<Box<Map<String, Value>>>,
}

/// The settings in a rule's `rate_limit`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitSettings {
    pub(super) name: Option<Arc<str>>,
    pub(super) replaces: Box<[Arc<str>]>,
    pub(super) limit: Limit,
    /// The limit as text, which each response of an unnamed rule reports.
    pub(super) text: Arc<str>,
    pub(super) tiers: Box<[(Box<str>, Limit)]>,
    /// Whether the limit and those of its tiers are in-flight limits, also if they deny all requests.
    pub(super) is_in_flight: bool,
    pub(super) cost: u64,
    pub(super) on_failure: Option<OnFailure>,
    pub(super) lease: Option<Box<Lease>>,
    pub(super) ban: Option<Box<Ban>>,
    pub(super) candidate: Option<Quota>,
    /// Whether several regions share the limit.
    pub(super) is_replicated: bool,
}

/// An entry that a descriptor must have.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Shared by the rules above, below and beside it.
    pub(super) key: Arc<str>,
    pub(super) pattern: Pattern,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Exact(Arc<str>),
    /// The text before the `*`, which is the only one and at the end.
    Prefix(Arc<str>),
    Wildcard(Arc<Wildcard>),
    /// The first of the descriptor's networks.
    Network(IpNet),
    Any,
}

impl Pattern {
    pub(super) fn new(value: &str) -> Self {
        match (value.strip_suffix('*'), Wildcard::new(value)) {
            _ if value.is_empty() => Self::Any,
            (Some(prefix), _) if !prefix.contains('*') => Self::Prefix(prefix.into()),
            (_, Some(wildcard)) => Self::Wildcard(Arc::new(wildcard)),
            (_, None) => Self::Exact(value.into()),
        }
    }

    /// Returns whether several values match, and each is known to match.
    pub(super) const fn matches_several(&self) -> bool {
        matches!(self, Self::Prefix(_) | Self::Wildcard(_) | Self::Network(_))
    }

    /// Returns the pattern as shown in a path: `login`, `api*`; `None` if it matches every value.
    fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Exact(value) => Some(Cow::Borrowed(value)),
            Self::Prefix(prefix) => Some(Cow::Owned(format!("{prefix}*"))),
            Self::Wildcard(wildcard) => Some(Cow::Borrowed(wildcard.text())),
            Self::Network(network) => Some(Cow::Owned(network.to_string())),
            Self::Any => None,
        }
    }

    /// Appends the pattern after a separator, unless it matches every value.
    fn append(&self, separator: char, out: &mut String) {
        if let Some(text) = self.text() {
            out.push(separator);
            out.push_str(&text);
        }
    }
}

impl Step {
    pub(super) fn text_bytes(&self) -> usize {
        let value = match &self.pattern {
            Pattern::Exact(text) | Pattern::Prefix(text) => text.len(),
            Pattern::Wildcard(wildcard) => wildcard.text().len(),
            // No text is longer.
            Pattern::Network(_) => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128".len(),
            Pattern::Any => 0,
        };
        self.key.len() + value
    }
}

/// # Properties
impl Rule {
    /// The end of the names of candidates' gates: see [`candidate_gate_name`](Self::candidate_gate_name).
    pub const CANDIDATE_SUFFIX: &str = "..candidate";

    /// Returns the path of the rule, in the format of Envoy's service: `auth.auth_type_login`,
    /// `messaging.message_type_marketing.to_number`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the `name` of the `rate_limit`, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.settings.name.as_deref()
    }

    /// Returns the rule's name, or its path.
    #[must_use]
    pub fn shown(&self) -> &Arc<str> {
        self.settings.name.as_ref().unwrap_or(&self.path)
    }

    /// Returns a name that tells clients nothing of the rules that other headers do not tell: the rule's name, which an
    /// author wrote for them, or a limit as text, such as `100/min`. `quota`: that decided, such as that of a tier; `None`
    /// for a limit that denies everything, which is named `denied`.
    #[must_use]
    pub fn neutral_name(&self, quota: Option<Quota>) -> Arc<str> {
        match (&self.settings.name, quota) {
            (Some(name), _) => name.clone(),
            (None, quota) if quota == self.quota() => self.settings.text.clone(),
            (None, quota) => limit_text(quota),
        }
    }

    /// Returns the name of the rule for people: its domain and descriptors, such as `api / path=/login / user`. Characters
    /// that are invisible or control a terminal are escaped. Different rules can share it, unlike a [gate](Self::gate_name).
    #[must_use]
    pub fn readable_name(&self) -> String {
        let mut name = self.domain.to_string();
        for step in &self.steps {
            name.push_str(" / ");
            name.push_str(&step.key);
            step.pattern.append('=', &mut name);
        }
        visible(&name).into_owned()
    }

    /// Iterates over the entries of the descriptors that match: a key and a value, such as `/reports/*`. `None` means each
    /// value, which has a count of its own.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Option<String>)> {
        self.steps.iter().map(|step| (&*step.key, step.pattern.text().map(Cow::into_owned)))
    }

    /// Iterates over the tiers that have limits of their own.
    pub fn tiers(&self) -> impl Iterator<Item = (&str, Limit)> {
        self.settings.tiers.iter().map(|(tier, limit)| (&**tier, *limit))
    }

    /// Returns the limit of a tier. For a tier that the rule does not name, and for `None`, it is the limit of
    /// all others.
    #[must_use]
    pub fn limit(&self, tier: Option<&str>) -> Limit {
        self.limit_with_index(tier).1
    }

    /// Returns whether the rule has other limits for some tiers: the limit of a key is then not known without its request.
    #[must_use]
    pub fn has_tiers(&self) -> bool {
        !self.settings.tiers.is_empty()
    }

    /// Returns the quota of requests without a tier; `None` if the rule is unlimited or denies everything.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.settings.limit.quota()
    }

    /// Returns whether the rule admits everything.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        matches!(self.settings.limit, Limit::Unlimited)
    }

    /// Returns whether the rule limits requests in flight instead of a rate, also if it admits none of them.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        self.settings.is_in_flight
    }

    /// Returns whether the rule also decides requests that cost nothing: it limits requests in flight, or one of its limits
    /// denies every request.
    pub(super) fn applies_without_cost(&self) -> bool {
        let LimitSettings { limit, tiers, is_in_flight, .. } = &*self.settings;
        let mut limits = iter::once(limit).chain(tiers.iter().map(|(_, limit)| limit));
        *is_in_flight || limits.any(|limit| matches!(limit, Limit::DenyAll(_)))
    }

    /// Returns the units of one hit.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.settings.cost
    }

    /// Returns the stricter quota that the rule tries beside its own, if it has one: it decides and counts requests
    /// without a tier of the rule, and denies none.
    #[must_use]
    pub fn candidate(&self) -> Option<Quota> {
        self.settings.candidate
    }

    /// Returns the ban that the rule's denials of a key lead to, if it has one.
    #[must_use]
    pub fn ban(&self) -> Option<Ban> {
        self.settings.ban.as_deref().copied()
    }

    /// Returns whether several regions share the limits of the rule.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.settings.is_replicated
    }

    /// Returns whether the rule is in shadow mode: it decides and counts, but never denies.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.marks.shadow
    }

    /// Returns whether the rule is in quota mode: if it denies a request, the request passes as long as
    /// another rule in quota mode admits it.
    #[must_use]
    pub const fn is_quota(&self) -> bool {
        self.marks.quota
    }

    /// Returns whether the rule charges units that were used already, whatever the state:
    /// [`Gate::charge_used`](tidegate::Gate::charge_used).
    #[must_use]
    pub const fn charges_used(&self) -> bool {
        self.marks.charges_used
    }

    /// Returns the `metadata` of the rule's descriptor.
    #[must_use]
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.marks.metadata.as_deref()
    }

    /// Returns the domain.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the file and line of the rule's `key`.
    #[must_use]
    pub fn origin(&self) -> (&str, usize) {
        (&self.file, self.line as usize)
    }

    /// Returns the name of the gate that counts for the rule.
    ///
    /// The name depends only on the domain and on the keys and values of the rule's path. Counts are kept
    /// when anything else in the file changes. The name is plain, such as `auth.auth_type-login`, if these
    /// parts are short and contain only `a-z0-9_`. Otherwise it is a sanitized prefix of them and a hash.
    #[must_use]
    pub fn gate_name(&self) -> String {
        let name = self.steps.iter().fold(self.domain.to_string(), |mut name, step| {
            name = name + "." + &step.key;
            match &step.pattern {
                Pattern::Exact(value) => name + "-" + value,
                Pattern::Prefix(prefix) => name + "-" + prefix,
                Pattern::Wildcard(wildcard) => name + "-" + wildcard.text(),
                Pattern::Network(network) => name + "-" + &network.to_string(),
                Pattern::Any => name,
            }
        });
        match self.is_unambiguous() && name.len() <= MAX_NAME_BYTES {
            true => name,
            false => self.hashed(&name),
        }
    }

    /// Returns the name of the gate that counts for the rule's [`candidate`](Self::candidate): `auth.user..candidate`.
    /// No name of a rule's own gate contains `..`, because no key is empty.
    #[must_use]
    pub fn candidate_gate_name(&self) -> String {
        let own = self.gate_name();
        let own =
            if own.len() + Self::CANDIDATE_SUFFIX.len() > MAX_NAME_BYTES { self.hashed(&own) } else { own };
        // A name that is too long keeps its end: the hash of the rule, and the suffix.
        let name = own + Self::CANDIDATE_SUFFIX;
        name[name.len().saturating_sub(MAX_NAME_BYTES)..].to_owned()
    }

    /// Returns whether the plain name determines the parts: no part contains the separator that follows it,
    /// and none looks like the start of a hash.
    fn is_unambiguous(&self) -> bool {
        let is_plain = |text: &str, more: &str| {
            let is_allowed =
                |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_') || more.contains(byte as char);
            !text.is_empty() && text.bytes().all(is_allowed)
        };
        let is_plain_step = |step: &Step| {
            is_plain(&step.key, "")
                && match &step.pattern {
                    Pattern::Exact(value) => is_plain(value, "-"),
                    Pattern::Prefix(_) | Pattern::Wildcard(_) | Pattern::Network(_) => false,
                    Pattern::Any => true,
                }
        };
        is_plain(&self.domain, "-") && self.steps.iter().all(is_plain_step)
    }

    /// Returns a name with a hash of all parts after `.-`. No plain name contains `.-`, because no key is
    /// empty.
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
                Pattern::Wildcard(wildcard) => add(4, wildcard.text()),
                Pattern::Network(network) => add(5, &network.to_string()),
                Pattern::Any => {}
            }
        }
        let mut out: String = name
            .chars()
            .take(MAX_NAME_BYTES - 22)
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

/// # Per request
impl Rule {
    pub(super) fn new(
        domain: Arc<str>,
        steps: &[Step],
        settings: Arc<LimitSettings>,
        marks: RuleMarks,
        (file, line): (Arc<str>, u32),
    ) -> Self {
        let mut path = domain.to_string();
        for step in steps {
            path.push('.');
            path.push_str(&step.key);
            step.pattern.append('_', &mut path);
        }
        let (steps, path) = (steps.into(), path.into());
        Self { domain, steps, settings, marks, file, line, path }
    }

    /// Returns the limit for a tier and its index in the rule's gates. Index 0 is for requests without a
    /// known tier.
    pub(super) fn limit_with_index(&self, tier: Option<&str>) -> (usize, Limit) {
        let found = tier.and_then(|tier| self.settings.tiers.iter().position(|(name, _)| **name == *tier));
        found.map_or((0, self.settings.limit), |at| (at + 1, self.settings.tiers[at].1))
    }

    /// Returns the key of the count: the values that the rule leaves open. Two descriptors of one rule have
    /// the same key only if they share a count, so the key escapes the separator `|`.
    pub(super) fn key(&self, descriptor: &Descriptor<'_>) -> Vec<u8> {
        let is_open = |step: &Step| !matches!(step.pattern, Pattern::Exact(_)) && !step.share_threshold;
        let open = self.steps.iter().zip(&descriptor.entries).filter(|(step, _)| is_open(step));
        let mut values = open.map(|(_, (_, value))| &**value);
        let Some(first) = values.next() else { return Vec::new() };
        match values.next() {
            None => first.to_vec(),
            Some(second) => joined([first, second].into_iter().chain(values)),
        }
    }

    /// Returns the name for metrics, if it differs from the path.
    pub(super) fn metric(&self, descriptor: &Descriptor<'_>) -> Option<String> {
        let shows_value = |step: &Step| match (&step.pattern, step.share_threshold) {
            (Pattern::Exact(_), _) | (_, true) => false,
            (_, false) => self.marks.detailed_metric || step.value_to_metric,
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
                false => step.pattern.append('_', &mut name),
            }
        }
        Some(name)
    }
}

/// Returns a limit as text; `denied` for one that denies everything.
pub(super) fn limit_text(quota: Option<Quota>) -> Arc<str> {
    quota.map_or_else(|| "denied".into(), |quota| quota.to_string().into())
}

/// Joins the parts so that different lists make different keys: escapes the separator `|`.
pub(super) fn joined<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut key = Vec::new();
    for part in parts {
        for &byte in part {
            if matches!(byte, b'|' | b'\\') {
                key.push(b'\\');
            }
            key.push(byte);
        }
        key.push(b'|');
    }
    key.pop();
    key
}

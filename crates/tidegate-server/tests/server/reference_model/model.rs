//! How envoyproxy/ratelimit (f2fb157) decides, written anew from what its code does. It has no clock, no store and no
//! statistics: counts are by the text of a descriptor and the beginning of its window.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value, json};
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;

/// The units: their name in a file, their number in the protocol, and their seconds.
pub const UNITS: [(&str, i32, u64); 7] = [
    ("second", 1, 1),
    ("minute", 2, 60),
    ("hour", 3, 3_600),
    ("day", 4, 86_400),
    ("week", 7, 604_800),
    ("month", 5, 2_592_000),
    ("year", 6, 31_536_000),
];

/// A reason for which tidegate decides differently, as its documentation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    UnusedReset,
    ZeroLimit,
    SharedCount,
    SameDescriptorTwice,
    ShadowBeside,
    WildcardOrder,
    UnknownDomain,
    LostMetadata,
}

impl Cause {
    /// The first cell of its row in the documentation.
    pub const fn row(self) -> &'static str {
        match self {
            Self::UnusedReset => "the reset of a limit that is not in use",
            Self::ZeroLimit => "a limit of 0",
            Self::SharedCount => "a `limit` in a descriptor that a rule matches, too",
            Self::SameDescriptorTwice => "the same descriptor twice in a request",
            Self::ShadowBeside => "a rule in shadow mode beside others, with `charge: all`",
            Self::WildcardOrder => "several wildcards match",
            Self::UnknownDomain => "a `limit` in a descriptor of an unknown domain",
            Self::LostMetadata => "the `metadata` of a rule with `detailed_metric`",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Rule {
    pub key: &'static str,
    pub value: &'static str,
    pub limit: Option<Limit>,
    pub shadow: bool,
    pub quota: bool,
    pub share: bool,
    pub detailed: bool,
    pub metadata: Option<u64>,
    pub rules: Vec<Self>,
}

#[derive(Clone, Debug, Default)]
pub struct Limit {
    pub requests: u32,
    /// An index of [`UNITS`]; without one, the limit is unlimited.
    pub unit: Option<usize>,
    pub name: Option<&'static str>,
    pub replaces: Vec<&'static str>,
}

impl Rule {
    /// The rule as a file has it: JSON is YAML.
    pub fn written(&self) -> Value {
        let mut rule = json!({ "key": self.key });
        if !self.value.is_empty() {
            rule["value"] = self.value.into();
        }
        let flags = [
            ("shadow_mode", self.shadow),
            ("quota_mode", self.quota),
            ("share_threshold", self.share),
            ("detailed_metric", self.detailed),
        ];
        for (name, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            rule[*name] = true.into();
        }
        if let Some(number) = self.metadata {
            rule["metadata"] = json!({ "of": { format!("rule{number}"): self.key } , "first": self.value });
        }
        if let Some(limit) = &self.limit {
            let mut written = match limit.unit {
                Some(unit) => json!({ "unit": UNITS[unit].0, "requests_per_unit": limit.requests }),
                None => json!({ "unlimited": true }),
            };
            if let Some(name) = limit.name {
                written["name"] = name.into();
            }
            if !limit.replaces.is_empty() {
                written["replaces"] = limit.replaces.iter().map(|name| json!({ "name": name })).collect();
            }
            rule["rate_limit"] = written;
        }
        if !self.rules.is_empty() {
            rule["descriptors"] = self.rules.iter().map(Self::written).collect();
        }
        rule
    }

    fn is_wildcard(&self) -> bool {
        self.value.contains('*')
    }

    /// Whether a wildcard matches, by trying all lengths of what each `*` stands for.
    fn matches(&self, key: &str, value: &str) -> bool {
        fn glob(pattern: &[u8], text: &[u8]) -> bool {
            match pattern.split_first() {
                None => text.is_empty(),
                Some((b'*', rest)) => (0..=text.len()).any(|from| glob(rest, &text[from..])),
                Some((byte, rest)) => text.first() == Some(byte) && glob(rest, &text[1..]),
            }
        }
        self.key == key && glob(self.value.as_bytes(), value.as_bytes())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub is_over: bool,
    /// The requests and the number of the unit.
    pub limit: Option<(u32, i32)>,
    pub remaining: u32,
    pub reset: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub is_over: bool,
    pub statuses: Vec<Status>,
    pub metadata: Map<String, Value>,
}

/// The limit that applies to a descriptor.
struct Applied<'r> {
    requests: u32,
    unit: usize,
    shadow: bool,
    quota: bool,
    name: Option<&'static str>,
    metadata: Option<Value>,
    /// The text by which it counts.
    key: String,
    /// What counts by it here.
    counted_as: String,
    rule: Option<&'r Rule>,
}

pub struct Model {
    pub domain: &'static str,
    pub rules: Vec<Rule>,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    pub stops: bool,
    pub shadow: bool,
    counts: HashMap<String, u64>,
    counted_as: HashMap<String, BTreeSet<String>>,
    /// The causes for which counts differ.
    tainted: BTreeMap<String, BTreeSet<Cause>>,
}

impl Model {
    pub fn new(domain: &'static str, rules: Vec<Rule>, stops: bool, shadow: bool) -> Self {
        let (counts, counted_as, tainted) = Default::default();
        Self { domain, rules, stops, shadow, counts, counted_as, tainted }
    }

    /// Follows a descriptor's entries. `first`: of several wildcards, takes the first in the file, as there; else the one
    /// with the most other letters, as here. Returns the rules on the path, if the last one has a limit.
    fn find<'r>(rules: &'r [Rule], descriptor: &RateLimitDescriptor, first: bool) -> Option<Vec<&'r Rule>> {
        let (mut level, mut path) = (rules, Vec::new());
        for entry in &descriptor.entries {
            let exact = level
                .iter()
                .find(|rule| rule.key == entry.key && rule.value == entry.value && !rule.value.is_empty());
            let mut wildcards: Vec<&Rule> = level
                .iter()
                .filter(|rule| rule.is_wildcard() && rule.matches(&entry.key, &entry.value))
                .collect();
            if !first {
                wildcards.sort_by_key(|rule| std::cmp::Reverse(rule.value.replace('*', "").len()));
            }
            let any = level.iter().find(|rule| rule.key == entry.key && rule.value.is_empty());
            let next = exact.or(wildcards.first().copied()).or(any)?;
            path.push(next);
            level = &next.rules;
        }
        path.last()?.limit.as_ref()?;
        Some(path)
    }

    /// Returns the decision, and the causes for which it may be another one here.
    pub fn decide(&mut self, request: &RateLimitRequest, now: u64) -> (Decided, BTreeSet<Cause>) {
        let mut causes = BTreeSet::new();
        let rules = self.rules.clone();
        let mut replaced = Vec::new();
        let mut unlimited = vec![false; request.descriptors.len()];
        let is_known = request.domain == self.domain;
        let mut limits: Vec<Option<Applied<'_>>> = Vec::new();
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            let text = |pattern: &dyn Fn(usize) -> Option<&'static str>| {
                let entries = descriptor.entries.iter().enumerate();
                let entries = entries
                    .map(|(at, entry)| format!("{}_{}_", entry.key, pattern(at).unwrap_or(&entry.value)));
                format!("{}_{}", request.domain, entries.collect::<String>())
            };
            let entries = format!("{:?}", descriptor.entries);
            let limit = match &descriptor.limit {
                _ if !is_known => {
                    if descriptor.limit.is_some() {
                        causes.insert(Cause::UnknownDomain);
                    }
                    None
                }
                Some(own) => {
                    let unit = UNITS.iter().position(|(_, number, _)| *number == own.unit).unwrap();
                    Some(Applied {
                        requests: own.requests_per_unit,
                        unit,
                        shadow: false,
                        quota: false,
                        name: None,
                        metadata: None,
                        key: text(&|_| None),
                        counted_as: format!("own {unit} {entries}"),
                        rule: None,
                    })
                }
                None => {
                    let path = Self::find(&rules, descriptor, true);
                    let here = Self::find(&rules, descriptor, false);
                    let last = |path: &Option<Vec<&Rule>>| {
                        path.as_ref().and_then(|path| path.last().copied()).map(std::ptr::from_ref)
                    };
                    if last(&path) != last(&here) {
                        causes.insert(Cause::WildcardOrder);
                    }
                    path.and_then(|path| {
                        let rule = *path.last()?;
                        let limit = rule.limit.as_ref()?;
                        replaced.extend(&limit.replaces);
                        let Some(unit) = limit.unit else {
                            unlimited[at] = true;
                            return None;
                        };
                        let key = text(&|at: usize| path[at].share.then_some(path[at].value));
                        let written = rule.written();
                        let mut metadata = rule.metadata.map(|_| written["metadata"].clone());
                        if rule.detailed && rule.rules.is_empty() && metadata.take().is_some() {
                            causes.insert(Cause::LostMetadata);
                        }
                        Some(Applied {
                            requests: limit.requests,
                            unit,
                            shadow: rule.shadow,
                            quota: rule.quota,
                            name: limit.name,
                            metadata,
                            counted_as: format!("rule {:?} {key}", std::ptr::from_ref(rule)),
                            key,
                            rule: Some(rule),
                        })
                    })
                }
            };
            limits.push(limit);
        }
        for limit in &mut limits {
            if limit.as_ref().and_then(|limit| limit.name).is_some_and(|name| replaced.contains(&name)) {
                *limit = None;
            }
        }
        for limit in limits.iter_mut().flatten() {
            let seconds = UNITS[limit.unit].2;
            limit.key = format!("{}{}", limit.key, now / seconds * seconds);
            // A rule is one of this version of the rules, wherever it is.
            limit.counted_as = match limit.rule {
                Some(rule) => format!("rule {} {} {}", rule.key, rule.value, limit.unit),
                None => limit.counted_as.clone(),
            };
        }
        let hits: Vec<u64> = request
            .descriptors
            .iter()
            .map(|descriptor| descriptor.hits_addend.unwrap_or_else(|| request.hits_addend.max(1).into()))
            .collect();

        let count =
            |counts: &HashMap<String, u64>, key: &String| counts.get(key).copied().unwrap_or_default();
        let near: Vec<bool> = limits
            .iter()
            .zip(&hits)
            .map(|(limit, hits)| {
                let limit = limit.as_ref().filter(|_| self.stops);
                limit.is_some_and(|limit| count(&self.counts, &limit.key) + hits > limit.requests.into())
            })
            .collect();
        let is_near = near.contains(&true);
        self.note_causes(&limits, &hits, &near, &mut causes);
        let mut statuses = Vec::new();
        let (mut has_failed, mut quotas, mut failed_quotas) = (false, 0, 0);
        let mut metadata = Map::new();
        for (at, limit) in limits.iter().enumerate() {
            let Some(limit) = limit else {
                let remaining = if unlimited[at] { u32::MAX } else { 0 };
                statuses.push(Status { is_over: false, limit: None, remaining, reset: None });
                continue;
            };
            let charged = if is_near && !near[at] { 0 } else { hits[at] };
            let after = self.counts.entry(limit.key.clone()).or_default();
            *after += charged;
            let is_above = *after > limit.requests.into();
            let is_over = is_above && !limit.shadow;
            let (_, number, seconds) = UNITS[limit.unit];
            statuses.push(Status {
                is_over,
                limit: Some((limit.requests, number)),
                remaining: if is_above { 0 } else { limit.requests - u32::try_from(*after).unwrap() },
                reset: Some(seconds - now % seconds),
            });
            quotas += u32::from(limit.quota);
            match (is_over, limit.quota) {
                (true, true) => failed_quotas += 1,
                (true, false) => has_failed = true,
                (false, _) => merge(&mut metadata, limit.metadata.as_ref()),
            }
        }
        let is_over = (has_failed || (quotas > 0 && quotas == failed_quotas)) && !self.shadow;
        (Decided { is_over, statuses, metadata }, causes)
    }

    /// Adds the causes for which these limits count or decide otherwise here.
    fn note_causes(
        &mut self,
        limits: &[Option<Applied<'_>>],
        hits: &[u64],
        near: &[bool],
        causes: &mut BTreeSet<Cause>,
    ) {
        for (at, limit) in limits.iter().enumerate() {
            let Some(limit) = limit else { continue };
            if limit.requests == 0 && hits[at] == 0 {
                causes.insert(Cause::ZeroLimit);
            }
            let sources = self.counted_as.entry(limit.key.clone()).or_default();
            sources.insert(limit.counted_as.clone());
            if sources.len() > 1 {
                causes.insert(Cause::SharedCount);
            }
            let same = limits.iter().zip(hits).filter_map(|(other, hits)| Some((other.as_ref()?, hits)));
            let same: Vec<u64> =
                same.filter(|(other, _)| other.key == limit.key).map(|(_, hits)| *hits).collect();
            let used = self.counts.get(&limit.key).copied().unwrap_or_default();
            let is_denied = used + same.iter().sum::<u64>() > limit.requests.into();
            if same.len() > 1 && (self.stops || is_denied) {
                causes.insert(Cause::SameDescriptorTwice);
            }
            if near.contains(&true) && limit.shadow && limits.len() > 1 {
                causes.insert(Cause::ShadowBeside);
            }
        }
        for limit in limits.iter().flatten() {
            causes.extend(self.tainted.get(&limit.key).into_iter().flatten());
        }
        let lasting = causes.iter().copied().filter(|cause| *cause != Cause::LostMetadata);
        let lasting: BTreeSet<Cause> = lasting.collect();
        for limit in limits.iter().flatten().filter(|limit| limit.requests == 0) {
            self.tainted.entry(limit.key.clone()).or_default().insert(Cause::ZeroLimit);
        }
        if !lasting.is_empty() {
            for limit in limits.iter().flatten() {
                self.tainted.entry(limit.key.clone()).or_default().extend(&lasting);
            }
        }
    }
}

/// Merges maps; of two other values, the first stays.
fn merge(into: &mut Map<String, Value>, more: Option<&Value>) {
    for (name, value) in more.and_then(Value::as_object).into_iter().flatten() {
        match into.get_mut(name) {
            None => drop(into.insert(name.clone(), value.clone())),
            Some(Value::Object(first)) => merge(first, Some(value)),
            Some(_) => {}
        }
    }
}

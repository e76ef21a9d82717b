//! Explains to an operator why a rule matches a descriptor, or why none does.

use std::fmt;

use tidegate::redact::RedactedKey;

use super::descriptor::Descriptor;
use super::load::Rules;
use super::rule::{Pattern, Rule};
use super::tree::Branch;
use crate::limit::Limit;
use crate::tree::{available, listed, no_match};

/// The path of a descriptor through the rules of its domain, from [`Rules::explain`]. `Debug` redacts the values
/// of the descriptor.
///
/// ```
/// use tidegate_rules::{Descriptor, Rules};
///
/// let text = "{domain: auth, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]}";
/// let rules = Rules::parse("auth.yaml", text)?;
/// let explanation = rules.explain("auth", &Descriptor::from([("usr", "ada")]));
/// assert!(explanation.rule().is_none());
/// assert_eq!(explanation.why_not(), Some("no match for the key `usr`; available: `user`; did you mean `user`?"));
/// # Ok::<(), tidegate_rules::ConfigErrors>(())
/// ```
#[derive(Clone)]
pub struct Explanation<'r> {
    matched: Vec<MatchedEntry>,
    rule: Option<&'r Rule>,
    limit: Option<Limit>,
    why_not: Option<String>,
}

/// An entry of a descriptor and the part of the rules that matches it. `Debug` redacts the entry, `Display` shows
/// it.
#[derive(Clone, PartialEq, Eq)]
pub struct MatchedEntry {
    entry: String,
    by: String,
    file: String,
    line: usize,
    passed_over: Vec<String>,
}

impl Explanation<'_> {
    /// Returns the matched entries, starting with the first.
    #[must_use]
    pub fn matched(&self) -> &[MatchedEntry] {
        &self.matched
    }

    /// Returns the matching rule.
    #[must_use]
    pub const fn rule(&self) -> Option<&Rule> {
        self.rule
    }

    /// Returns the limit that the matching rule has for the descriptor's tier, or the descriptor's own.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// Returns why no rule matches; `None` if there is one.
    #[must_use]
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }
}

impl MatchedEntry {
    /// Returns the entry: `auth_type=login`.
    #[must_use]
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// Returns the matching part of the rules: ``the value `login` ``, ``the prefix `api*` ``, ``the pattern
    /// `*.example.com` ``, ``the network `10.0.0.0/8` ``, or `the key without a value`.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Returns the file and line of the matching part.
    #[must_use]
    pub fn origin(&self) -> (&str, usize) {
        (&self.file, self.line)
    }

    /// Returns the parts of the rules that match too, but are less specific.
    #[must_use]
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }
}

impl fmt::Debug for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The reason can name a value of the descriptor.
        let why_not = self.why_not.as_ref().map(|why_not| RedactedKey::new(why_not.as_bytes()));
        f.debug_struct("Explanation")
            .field("matched", &self.matched)
            .field("rule", &self.rule.map(Rule::path))
            .field("limit", &self.limit)
            .field("why_not", &why_not)
            .finish()
    }
}

impl fmt::Debug for MatchedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MatchedEntry")
            .field("entry", &RedactedKey::new(self.entry.as_bytes()))
            .field("by", &self.by)
            .field("file", &self.file)
            .field("line", &self.line)
            .field("passed_over", &self.passed_over)
            .finish()
    }
}

impl fmt::Display for MatchedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} matches {} ({}:{})", self.entry, self.by, self.file, self.line)?;
        match &*self.passed_over {
            [] => Ok(()),
            passed_over => write!(f, ", which is more specific than {}", passed_over.join(", ")),
        }
    }
}

impl Rules {
    /// Explains which rule matches a descriptor and by which path, or which entry has no match.
    #[must_use]
    pub fn explain(&self, domain: &str, descriptor: &Descriptor<'_>) -> Explanation<'_> {
        if let Some(limit) = descriptor.limit {
            let why_not = "the descriptor brings its own limit, so no rule applies".to_owned();
            return Explanation {
                matched: Vec::new(),
                rule: None,
                limit: Some(limit),
                why_not: Some(why_not),
            };
        }
        let mut matched = Vec::new();
        let (rule, why_not) = match self.walk(domain, descriptor, &mut matched) {
            Ok(rule) => (Some(rule), None),
            Err(why_not) => (None, Some(why_not)),
        };
        let limit = rule.map(|rule| rule.limit(descriptor.tier.as_deref()));
        Explanation { matched, rule, limit, why_not }
    }

    fn walk(
        &self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        matched: &mut Vec<MatchedEntry>,
    ) -> Result<&Rule, String> {
        let domains = &self.compiled().domains;
        let Some(found) = domains.get(domain) else {
            return Err(format!("no file has the domain `{domain}`{}", available(domain, &self.domains())));
        };
        let mut level = &found.top;
        let mut last: Option<&Branch> = None;
        for entry @ (key, value) in &descriptor.entries {
            let candidates = level.candidates(entry);
            let [(pattern, branch), passed_over @ ..] = &*candidates else {
                return Err(no_match(level, key, &String::from_utf8_lossy(value)));
            };
            matched.push(MatchedEntry {
                entry: format!("{key}={}", String::from_utf8_lossy(value)),
                by: describe(pattern),
                file: branch.file.to_string(),
                line: branch.line as usize,
                passed_over: passed_over.iter().map(|(pattern, _)| describe(pattern)).collect(),
            });
            (level, last) = (&branch.below, Some(*branch));
        }
        let rule = last.and_then(|branch| branch.rule);
        rule.map(|index| &**self.shared(index as usize)).ok_or_else(|| {
            let next_keys = level.keys();
            match (last, &*next_keys) {
                (None, _) => "the descriptor has no entries: no rule matches an empty descriptor".to_owned(),
                (_, []) => "no `rate_limit` at this level".to_owned(),
                (_, keys) => format!("no `rate_limit` at this level; the next key can be {}", listed(keys)),
            }
        })
    }
}

fn describe(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Exact(value) => format!("the value `{value}`"),
        Pattern::Prefix(prefix) => format!("the prefix `{prefix}*`"),
        Pattern::Wildcard(wildcard) => format!("the pattern `{}`", wildcard.text()),
        Pattern::Network(network) => format!("the network `{network}`"),
        Pattern::Any => "the key without a value".to_owned(),
    }
}

//! Why a descriptor meets a rule, or none: for people.

use std::fmt;

use super::descriptor::Descriptor;
use super::fields::closest;
use super::load::Rules;
use super::rule::{Pattern, Rule};
use super::tree::{Branch, Level};

/// How many keys or values are named where several stand.
const MOST_NAMED: usize = 8;

/// The way of a descriptor down the rules of its domain, from [`Rules::explain`].
///
/// ```
/// use tidegate::rules::{Descriptor, Rules};
///
/// let text = "{domain: auth, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]}";
/// let rules = Rules::parse("auth.yaml", text)?;
/// let explanation = rules.explain("auth", &Descriptor::from([("usr", "ada")]));
/// assert!(explanation.rule().is_none());
/// assert_eq!(explanation.why_not(), Some("`usr` is met by nothing here: there is `user`; did you mean `user`?"));
/// # Ok::<(), tidegate::rules::Mistakes>(())
/// ```
#[derive(Clone, Debug)]
pub struct Explanation<'r> {
    way: Vec<Met>,
    rule: Option<&'r Rule>,
    why_not: Option<String>,
}

/// An entry of a descriptor, and what it was met by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    entry: String,
    by: String,
    file: String,
    line: usize,
    passed_over: Vec<String>,
}

impl Explanation<'_> {
    /// The entries that were met, from the first on.
    #[must_use]
    pub fn way(&self) -> &[Met] {
        &self.way
    }

    /// The rule at its end.
    #[must_use]
    pub const fn rule(&self) -> Option<&Rule> {
        self.rule
    }

    /// What was not met, or is missing; `None` where there is a rule.
    #[must_use]
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }
}

impl Met {
    /// The entry: `auth_type=login`.
    #[must_use]
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// What met it: ``the value `login` ``, ``the beginning `api*` ``, `the key without a value`.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// The file and the line of what met it.
    #[must_use]
    pub fn origin(&self) -> (&str, usize) {
        (&self.file, self.line)
    }

    /// What would have met it too, but is less specific.
    #[must_use]
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is met by {} ({}:{})", self.entry, self.by, self.file, self.line)?;
        match &*self.passed_over {
            [] => Ok(()),
            passed_over => write!(f, ", which is more specific than {}", passed_over.join(", ")),
        }
    }
}

impl Rules {
    /// Which rule a descriptor meets, and by which way; or what of it is not met.
    #[must_use]
    pub fn explain(&self, domain: &str, descriptor: &Descriptor<'_>) -> Explanation<'_> {
        let mut way = Vec::new();
        let found = self.walk(domain, descriptor, &mut way);
        match found {
            Ok(rule) => Explanation { way, rule: Some(rule), why_not: None },
            Err(why_not) => Explanation { way, rule: None, why_not: Some(why_not) },
        }
    }

    fn walk(&self, domain: &str, descriptor: &Descriptor<'_>, way: &mut Vec<Met>) -> Result<&Rule, String> {
        let domains = &self.compiled().domains;
        let Some(found) = domains.get(domain) else {
            let mut known: Vec<&str> = domains.keys().map(|name| &**name).collect();
            known.sort_unstable();
            return Err(format!("no file has the domain `{domain}`{}", there_is(domain, &known)));
        };
        let mut level = &found.top;
        let mut last: Option<&Branch> = None;
        for entry @ (key, value) in &descriptor.entries {
            let candidates = level.candidates(entry);
            let [(pattern, branch), passed_over @ ..] = &*candidates else {
                return Err(unmet(level, key, &String::from_utf8_lossy(value)));
            };
            way.push(Met {
                entry: format!("{key}={}", String::from_utf8_lossy(value)),
                by: said(pattern),
                file: branch.file.to_string(),
                line: branch.line,
                passed_over: passed_over.iter().map(|(pattern, _)| said(pattern)).collect(),
            });
            (level, last) = (&branch.below, Some(*branch));
        }
        let rule = last.and_then(|branch| branch.rule);
        rule.map(|index| &**self.shared(index)).ok_or_else(|| {
            let more: Vec<&str> = level.keys().collect();
            match (last, &*more) {
                (None, _) => "it has no entries, and no rule is met by nothing".to_owned(),
                (_, []) => "no `rate_limit` stands here".to_owned(),
                (_, more) => format!("no `rate_limit` stands here; it can go on with {}", listed(more)),
            }
        })
    }
}

fn said(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Exact(value) => format!("the value `{value}`"),
        Pattern::Prefix(prefix) => format!("the beginning `{prefix}*`"),
        Pattern::Any => "the key without a value".to_owned(),
    }
}

fn unmet(level: &Level, key: &str, value: &str) -> String {
    let keys: Vec<&str> = level.keys().collect();
    if keys.is_empty() {
        return format!("`{key}` is met by nothing: nothing can follow here");
    }
    if !keys.contains(&key) {
        return format!("`{key}` is met by nothing here{}", there_is(key, &keys));
    }
    let values = level.values(key);
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    format!("`{key}` stands here, but not with `{value}`{}", there_is(value, &values))
}

fn there_is(wanted: &str, known: &[&str]) -> String {
    let near = closest(wanted, known.iter().copied());
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    format!(": there is {}{near}", listed(known))
}

fn listed(names: &[&str]) -> String {
    let named: Vec<String> = names.iter().take(MOST_NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(MOST_NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

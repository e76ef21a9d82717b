//! Explains which rule applies to a descriptor or to an HTTP request, and why. Decides and charges nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use askama::Template;
use http::Request;
use http::request::Parts;
use tidegate::admin::human;
use tidegate_http::{Descriptors, PeerAddr};
use tidegate_rules::{Descriptor, Explanation, Limit, RulesLimiter};

use super::catalog::Origin;
use super::frame::{Frame, Tab};
use super::{display, filters};

/// The maximum length of each input, and the maximum descriptors and domains of the page.
const MAX_INPUT_BYTES: usize = 4_096;
const MAX_DESCRIPTORS: usize = 50;
const MAX_DOMAINS: usize = 500;

/// The page.
#[derive(Template)]
#[template(path = "explain.html")]
pub(super) struct ExplainPage {
    pub(super) frame: Frame,
    pub(super) domains: Vec<String>,
    pub(super) question: Question,
    /// `None` before the first question.
    pub(super) answer: Option<Result<Vec<Answer>, String>>,
}

/// The form of the page: a descriptor, or else a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Question {
    pub(super) domain: String,
    /// `key=value,key=value`.
    pub(super) descriptor: String,
    /// `GET /login`.
    pub(super) request: String,
    /// One `name: value` per line.
    pub(super) headers: String,
    pub(super) ip: String,
}

/// What applies to one descriptor.
pub(super) struct Answer {
    pub(super) descriptor: String,
    pub(super) matched: Vec<Match>,
    pub(super) rule: Option<RuleView>,
    pub(super) why_not: Option<String>,
}

/// An entry of the descriptor, and the part of the rules that matches it.
pub(super) struct Match {
    pub(super) entry: String,
    pub(super) by: String,
    pub(super) origin: Origin,
    pub(super) passed_over: Vec<String>,
}

/// The rule that matches.
pub(super) struct RuleView {
    pub(super) path: String,
    pub(super) gate: String,
    pub(super) limit: String,
    pub(super) origin: Origin,
    pub(super) notes: Vec<String>,
}

impl Question {
    fn is_empty(&self) -> bool {
        self.descriptor.trim().is_empty() && self.request.trim().is_empty()
    }

    /// Returns the request as a service would receive it.
    fn parts(&self) -> Result<Parts, String> {
        let line = self.request.trim();
        let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
        let mut request = Request::builder().method(method).uri(target.trim());
        for header in self.headers.lines().filter(|line| !line.trim().is_empty()) {
            let invalid = || format!("invalid header `{header}`: write such as `x-api-key: k1`");
            let (name, value) = header.split_once(':').ok_or_else(invalid)?;
            request = request.header(name.trim(), value.trim());
        }
        if !self.ip.trim().is_empty() {
            let invalid = |error| format!("invalid address `{}`: {error}", self.ip);
            let ip: IpAddr = self.ip.trim().parse().map_err(invalid)?;
            request = request.extension(PeerAddr(SocketAddr::new(ip, 0)));
        }
        let invalid = |error| format!("invalid request `{line}`: {error}; write such as `GET /login`");
        Ok(request.body(()).map_err(invalid)?.into_parts().0)
    }
}

impl ExplainPage {
    pub(super) fn new(frame: Frame, rules: &RulesLimiter, question: Question) -> Self {
        let domains: BTreeSet<&str> = rules.rules().iter().map(|rule| rule.domain()).collect();
        let answer = (!question.is_empty()).then(|| answers(rules, &question));
        Self {
            frame: Frame { title: "Explain".to_owned(), tab: Some(Tab::Explain), ..frame },
            domains: domains.into_iter().take(MAX_DOMAINS).map(str::to_owned).collect(),
            question,
            answer,
        }
    }
}

fn answers(rules: &RulesLimiter, question: &Question) -> Result<Vec<Answer>, String> {
    let Question { domain, descriptor, request, headers, ip } = question;
    if [domain, descriptor, request, headers, ip].into_iter().any(|text| text.len() > MAX_INPUT_BYTES) {
        return Err(format!("an input is longer than {MAX_INPUT_BYTES} bytes"));
    }
    let rules = rules.rules();
    let files: Vec<&str> = rules.sources().map(|(name, _)| name).collect();
    let answer =
        |descriptor: &Descriptor<'_>| Answer::new(descriptor, &rules.explain(domain, descriptor), &files);
    if !descriptor.trim().is_empty() {
        let entries = Descriptor::parse_entries(descriptor.trim()).map_err(|error| error.to_string())?;
        let descriptor =
            entries.iter().fold(Descriptor::new(), |descriptor, (key, value)| descriptor.entry(key, value));
        return Ok(vec![answer(&descriptor)]);
    }
    let (parts, descriptors) = (question.parts()?, Descriptors::of(domain));
    let found = descriptors.read(rules, &parts);
    let found = found.ok_or("the file's rate_limits need the client's address: fill in the address")?;
    Ok(found.iter().take(MAX_DESCRIPTORS).map(answer).collect())
}

impl Answer {
    fn new(descriptor: &Descriptor<'_>, explained: &Explanation<'_>, files: &[&str]) -> Self {
        let matched = explained.matched().iter().map(|entry| {
            let (file, line) = entry.origin();
            Match {
                entry: entry.entry().to_owned(),
                by: entry.by().replace('`', ""),
                origin: Origin::new(files, file, line),
                passed_over: entry.passed_over().iter().map(|text| text.replace('`', "")).collect(),
            }
        });
        Self {
            descriptor: descriptor.to_string(),
            matched: matched.collect(),
            rule: RuleView::new(explained, files),
            why_not: explained.why_not().map(|why_not| why_not.replace('`', "")),
        }
    }
}

impl RuleView {
    fn new(explained: &Explanation<'_>, files: &[&str]) -> Option<Self> {
        let (rule, limit) = (explained.rule()?, explained.limit()?);
        let (file, line) = rule.origin();
        let mut notes = Vec::new();
        if rule.is_shadow() {
            notes.push("Shadow mode: decides and counts, but denies nothing.".to_owned());
        }
        if rule.is_quota() {
            notes.push("Quota mode: denies only if all quotas deny.".to_owned());
        }
        if let Some(candidate) = rule.candidate() {
            notes.push(format!("Candidate: {}, denies nothing.", candidate));
        }
        if let (Some(ban), Limit::Quota(_), false) = (rule.ban(), limit, rule.is_shadow()) {
            let (lasts, within) = (human(ban.lasts()), human(ban.within()));
            notes.push(format!("Ban: for {lasts} after {} denials within {within}.", ban.denials()));
        }
        Some(Self {
            path: rule.path().to_owned(),
            gate: rule.gate_name(),
            limit: display::limit(&limit),
            origin: Origin::new(files, file, line),
            notes,
        })
    }
}

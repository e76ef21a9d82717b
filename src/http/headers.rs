//! Headers that tell a client where it stands.

use std::fmt::Write as _;
use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::policy::Policy;
use super::refusal::{Reason, Refusal};
use crate::decision::{AllDecision, Decision};

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Which headers tell a client where it stands, on every response of a request that was asked for.
///
/// | family | such as |
/// | --- | --- |
/// | [`x_ratelimit`](Self::x_ratelimit) | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 99`, `X-RateLimit-Reset: 60` |
/// | [`Draft::Eleven`] | `RateLimit-Policy: "api";q=100;w=60`, `RateLimit: "api";r=99;t=60` |
/// | [`Draft::Seven`] | `RateLimit-Policy: 100;w=60`, `RateLimit: limit=100, remaining=99, reset=60` |
/// | [`retry_after`](Self::retry_after) | `Retry-After: 12`, where it was refused |
///
/// All times are seconds from now, rounded up, so that who comes back then is not too early. Reset and `t` are the time until
/// nothing counts any more; with nothing left, that until something is to be had, which is Retry-After where it was denied.
/// A window is that of the quota, or the time in which a bucket fills; less than a second is said as one.
///
/// Of several limits draft 11 tells each; draft 7 lists all policies, but tells what is left, like X-RateLimit, of one: the one to wait
/// for, or the one of which least is left. Under another such layer, the lists are joined, and of the rest what leaves less is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    x_ratelimit: bool,
    draft: Option<Draft>,
    pub(super) retry_after: bool,
    jitter_s: u64,
}

/// Drafts of `draft-ietf-httpapi-ratelimit-headers`, which use the same names for different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Draft {
    /// Of 2023: one dictionary.
    Seven,
    /// Of 2026, the newest: lists of named policies.
    Eleven,
}

impl Headers {
    /// X-RateLimit, draft 11 and Retry-After.
    #[must_use]
    pub const fn new() -> Self {
        Self { x_ratelimit: true, draft: Some(Draft::Eleven), retry_after: true, jitter_s: 0 }
    }

    /// None at all, to begin with.
    #[must_use]
    pub const fn none() -> Self {
        Self { x_ratelimit: false, draft: None, retry_after: false, jitter_s: 0 }
    }

    /// Whether `X-RateLimit-Limit`, `-Remaining` and `-Reset` are sent.
    #[must_use]
    pub const fn x_ratelimit(mut self, is_sent: bool) -> Self {
        self.x_ratelimit = is_sent;
        self
    }

    /// Which draft's `RateLimit` and `RateLimit-Policy` are sent.
    #[must_use]
    pub const fn draft(mut self, draft: Option<Draft>) -> Self {
        self.draft = draft;
        self
    }

    /// Whether `Retry-After` is sent with what is refused.
    #[must_use]
    pub const fn retry_after(mut self, is_sent: bool) -> Self {
        self.retry_after = is_sent;
        self
    }

    /// Tells each client who is refused to come back up to so many whole seconds later, by chance, so that not all come back at once.
    ///
    /// Default: none.
    #[must_use]
    pub const fn retry_jitter(mut self, most: Duration) -> Self {
        self.jitter_s = most.as_secs();
        self
    }

    /// How long a client who is refused is told to wait.
    pub(super) fn wait(&self, retry_after: Duration) -> Duration {
        Duration::from_secs(seconds(retry_after).max(1).saturating_add(fastrand::u64(0..=self.jitter_s)))
    }

    pub(super) fn write(&self, headers: &mut HeaderMap, told: &Told<'_>) {
        let shown = told.shown();
        let Told { decision, .. } = told;
        let (limit, left) = (decision.decisions[shown].limit(), decision.decisions[shown].remaining());
        let reset = told.reset(shown);
        if self.x_ratelimit && leaves_less(headers, &X_REMAINING, left, |value| value.parse().ok()) {
            headers.insert(X_LIMIT, limit.into());
            headers.insert(X_REMAINING, left.into());
            headers.insert(X_RESET, reset.into());
        }
        match self.draft {
            Some(Draft::Seven) => {
                append(headers, RATELIMIT_POLICY, told.unnamed_policies(shown));
                let remaining =
                    |value: &str| value.split_once("remaining=")?.1.split(',').next()?.parse().ok();
                if leaves_less(headers, &RATELIMIT, left, remaining) {
                    headers.remove(RATELIMIT);
                    append(headers, RATELIMIT, format!("limit={limit}, remaining={left}, reset={reset}"));
                }
            }
            Some(Draft::Eleven) => {
                let (policies, limits) = told.named();
                append(headers, RATELIMIT_POLICY, policies);
                append(headers, RATELIMIT, limits);
            }
            None => {}
        }
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether what stands there already leaves more.
fn leaves_less(
    headers: &HeaderMap,
    name: &HeaderName,
    left: u64,
    remaining: impl Fn(&str) -> Option<u64>,
) -> bool {
    let there = headers.get(name).and_then(|value| remaining(value.to_str().ok()?));
    there.is_none_or(|there| left < there)
}

fn append(headers: &mut HeaderMap, name: HeaderName, value: String) {
    // Numbers and escaped names: always a value.
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.append(name, value);
    }
}

/// What a client is told.
pub(super) struct Told<'a> {
    pub(super) decision: &'a AllDecision,
    pub(super) policies: &'a [Policy],
    /// Where it was denied, how long it is told to wait.
    pub(super) wait: Option<Duration>,
}

impl<'a> Told<'a> {
    pub(super) fn of(refusal: &'a Refusal) -> Option<Self> {
        let Reason::Denied(decision) = refusal.reason() else { return None };
        Some(Self { decision, policies: &refusal.policies, wait: refusal.retry_after() })
    }

    /// The one that is told where only one can be.
    fn shown(&self) -> usize {
        if self.wait.is_some() {
            return self.decision.binding;
        }
        let left = |at: &usize| self.decision.decisions[*at].remaining();
        (0..self.policies.len()).min_by_key(left).unwrap_or(0)
    }

    /// Seconds until there is more than is left.
    fn reset(&self, at: usize) -> u64 {
        let decision = &self.decision.decisions[at];
        match self.wait {
            Some(wait) if at == self.decision.binding => wait.as_secs(),
            Some(_) if !decision.is_allowed() => seconds(decision.retry_after()).max(1),
            _ if decision.remaining() == 0 => seconds(decision.retry_after()).max(1),
            _ => seconds(decision.reset_after()),
        }
    }

    /// Such as `100;w=60, 1000;w=3600`. No two may have the same number of units.
    fn unnamed_policies(&self, shown: usize) -> String {
        let mut policies = String::new();
        let mut said = Vec::new();
        for at in std::iter::once(shown).chain((0..self.policies.len()).filter(|at| *at != shown)) {
            let (limit, window_s) = (self.decision.decisions[at].limit(), self.policies[at].window_s);
            if !said.contains(&limit) {
                let comma = if said.is_empty() { "" } else { ", " };
                let _ = write!(policies, "{comma}{limit};w={window_s}");
                said.push(limit);
            }
        }
        policies
    }

    /// Such as `"api";q=100;w=60` and `"api";r=99;t=60`. Of those of one name what leaves less.
    fn named(&self) -> (String, String) {
        let (mut policies, mut limits) = (String::new(), String::new());
        let names: Vec<&str> =
            (0..self.policies.len()).map(|at| self.policies[at].name(&self.decision.decisions[at])).collect();
        for (at, name) in names.iter().enumerate() {
            let decision = &self.decision.decisions[at];
            let rank = |at: usize| (at != self.decision.binding, self.decision.decisions[at].remaining(), at);
            if (0..names.len()).any(|other| names[other] == *name && rank(other) < rank(at)) {
                continue;
            }
            let comma = if policies.is_empty() { "" } else { ", " };
            let name = string(name);
            let _ = write!(policies, "{comma}{name};q={};w={}", decision.limit(), self.policies[at].window_s);
            let _ = write!(limits, "{comma}{name};r={};t={}", decision.remaining(), self.reset(at));
        }
        (policies, limits)
    }
}

impl Policy {
    pub(super) fn name<'a>(&'a self, decision: &'a Decision) -> &'a str {
        self.name.as_deref().unwrap_or_else(|| decision.gate())
    }
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// A string of RFC 9651, which is ASCII; other bytes, and so `%`, are percent-encoded.
fn string(text: &str) -> String {
    let mut string = String::with_capacity(text.len() + 2);
    string.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => string.extend(['\\', char::from(byte)]),
            b' '..=b'~' if byte != b'%' => string.push(char::from(byte)),
            _ => {
                let _ = write!(string, "%{byte:02X}");
            }
        }
    }
    string.push('"');
    string
}

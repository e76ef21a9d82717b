//! Response headers that report the limits to the client.

mod by_unit;
mod header_values;
mod named;

use std::fmt::Write as _;
use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use tidegate::{AllDecision, Decision, Gate, Quota};

pub(super) use self::header_values::HeaderValues;
use self::header_values::{Fields, Quoted, ceil_seconds};
use crate::policy::Policy;

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_SHADOW: HeaderName = HeaderName::from_static("x-ratelimit-shadow");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Returns the names of the headers of an admitted request.
#[cfg(feature = "actix")]
pub(super) fn reported_names() -> impl Iterator<Item = HeaderName> {
    [X_LIMIT, X_REMAINING, X_RESET, X_SHADOW, RATELIMIT, RATELIMIT_POLICY].into_iter().chain(by_unit::names())
}

/// Selects the headers that report the limits, on the response to each request that was checked. Limits in
/// shadow mode are reported only by [`shadow`](Self::shadow).
///
/// | family | example |
/// | --- | --- |
/// | [`x_ratelimit`](Self::x_ratelimit) | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 99`, `X-RateLimit-Reset: 60` |
/// | [`Draft::Eleven`] | `RateLimit-Policy: "api";q=100;w=60`, `RateLimit: "api";r=99;t=60` |
/// | [`Draft::Seven`] | `RateLimit-Policy: 100;w=60`, `RateLimit: limit=100, remaining=99, reset=60` |
/// | [`openai`](Self::openai), not by default | `x-ratelimit-limit-tokens: 40000`, `x-ratelimit-remaining-tokens: 38800`, `x-ratelimit-reset-tokens: 2s`; the same with `-requests` |
/// | [`retry_after`](Self::retry_after) | `Retry-After: 12`, on rejections |
/// | [`wait_name`](Self::wait_name), not by default | `X-RateLimit-Retry-After: 12`, on rejections |
/// | [`shadow`](Self::shadow), not by default | `X-RateLimit-Shadow: "login";r=0;t=12;denied, "api";r=99;t=60` |
///
/// All times are seconds from now, rounded up, so that a client that retries then is not too early.
///
/// - `X-RateLimit-Reset`, `reset` and `t` are the time until the limit is entirely available again. If no
///   unit remains, they are the time until a unit is available, which equals `Retry-After` on a denial.
/// - `w` is the quota's window, or the time in which a bucket fills. A window of less than a second is
///   reported as one second.
///
/// Of several limits, draft 11 reports each one. Draft 7 lists all policies, but like X-RateLimit it reports
/// the remaining units of one limit, the one that binds: on a denial the limit to wait for, otherwise the one with the
/// smallest share of its units left, because units of different limits cannot be compared. A limit in shadow mode is
/// not reported, since it denies nothing.
///
/// An in-flight limit has no window and no known reset time. Draft 11 reports it with its unit and without times,
/// as `RateLimit-Policy: "uploads";q=10;qu="concurrent-requests"` and `RateLimit: "uploads";r=3`. Draft 7 and
/// X-RateLimit cannot express it, so they report the other limits only. `Retry-After` is then a hint: a permit may be
/// released before or after it.
///
/// Draft 11 also reports a rule's [unit](crate::GateRule::quota_unit), and its [partition
/// key](crate::GateRule::partition_key), as in `RateLimit-Policy: "upload";q=65535;qu="content-bytes";w=10`.
///
/// With nested layers, list headers are merged; for single-valued headers the tighter limit wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    x_ratelimit: bool,
    draft: Option<Draft>,
    openai: bool,
    retry_after: bool,
    wait_name: Option<&'static str>,
    #[cfg(feature = "rules")]
    pub(super) rule_paths: bool,
    shadow: bool,
    jitter_s: u64,
}

/// Drafts of `draft-ietf-httpapi-ratelimit-headers`, which define the same header names differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Draft {
    /// Draft 7 of 2023: one dictionary.
    Seven,
    /// Draft 11 of 2026, the newest: lists of named policies.
    Eleven,
}

impl Headers {
    /// Sends X-RateLimit, draft 11 and Retry-After.
    #[must_use]
    pub const fn new() -> Self {
        Self { x_ratelimit: true, draft: Some(Draft::Eleven), retry_after: true, ..Self::none() }
    }

    /// Sends no header.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            x_ratelimit: false,
            draft: None,
            openai: false,
            retry_after: false,
            wait_name: None,
            #[cfg(feature = "rules")]
            rule_paths: false,
            shadow: false,
            jitter_s: 0,
        }
    }

    /// Sets whether to send `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    #[must_use]
    pub const fn x_ratelimit(mut self, is_sent: bool) -> Self {
        self.x_ratelimit = is_sent;
        self
    }

    /// Sets the draft whose `RateLimit` and `RateLimit-Policy` are sent; `None` sends neither.
    #[must_use]
    pub const fn draft(mut self, draft: Option<Draft>) -> Self {
        self.draft = draft;
        self
    }

    /// Sets whether to send the headers of OpenAI's API, which clients of language models read:
    /// `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`. The [unit](crate::GateRule::quota_unit) of a rule assigns
    /// it: `requests`, which is the default, or `tokens`. Limits of other units, such as money, and in-flight limits are
    /// not reported. Of several limits of one unit, the one that binds is.
    ///
    /// The reset time is the one of `X-RateLimit-Reset`, written as `1s`, `6m0s` or `24h0m0s`.
    ///
    /// Default: off.
    #[must_use]
    pub const fn openai(mut self, is_sent: bool) -> Self {
        self.openai = is_sent;
        self
    }

    /// Sets whether rejections carry `Retry-After`.
    #[must_use]
    pub const fn retry_after(mut self, is_sent: bool) -> Self {
        self.retry_after = is_sent;
        self
    }

    /// Also sends the wait of a rejection under this name, as whole seconds like `Retry-After`: for clients that read
    /// `x-ratelimit-retry-after`, for example. [`retry_after(false)`](Self::retry_after) leaves only this one.
    ///
    /// Default: none.
    ///
    /// # Panics
    ///
    /// If the name is not that of a header, in lower case.
    #[must_use]
    #[track_caller]
    pub fn wait_name(mut self, name: &'static str) -> Self {
        let is_valid = HeaderName::from_lowercase(name.as_bytes()).is_ok();
        assert!(
            is_valid,
            "{name:?} is not the name of a header in lower case, such as x-ratelimit-retry-after"
        );
        self.wait_name = Some(name);
        self
    }

    /// Sets whether responses name a rule from files by its path, such as `api.path_/login.user`, if it has no `name`.
    /// Paths tell clients what the rules match.
    ///
    /// Default: off. The name is then the limit as text, such as `100/min`, and limits of equal texts are reported as
    /// one, the one that binds.
    #[cfg(feature = "rules")]
    #[must_use]
    pub const fn rule_paths(mut self, are_sent: bool) -> Self {
        self.rule_paths = are_sent;
        self
    }

    /// Sets whether to send `X-RateLimit-Shadow`, which lists the limits in shadow mode, for developers who try a
    /// limit before it denies. `r` and `t` have the same meaning as in draft 11, and `denied` marks a limit that
    /// would have denied the request. Clients must not obey it, so leave it off where they are not yours.
    ///
    /// Default: off.
    #[must_use]
    pub const fn shadow(mut self, is_sent: bool) -> Self {
        self.shadow = is_sent;
        self
    }

    /// Adds a random number of whole seconds, at most `max`, to each retry time, so that rejected clients do
    /// not all retry at the same moment.
    ///
    /// Default: none.
    #[must_use]
    pub const fn retry_jitter(mut self, max: Duration) -> Self {
        self.jitter_s = max.as_secs();
        self
    }

    /// Returns the headers that report this decision, for a handler that checks a gate itself. Contains
    /// `Retry-After` if it is a denial. A gate in shadow mode has no headers. Units and partition keys belong to the
    /// rules of a layer, so these headers have none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    /// use tidegate_http::Headers;
    ///
    /// let gate = Limiter::in_memory().gate("api", Quota::token_bucket(100, Rate::per_minute(100)));
    /// let decision = gate.check("user:42").await?;
    /// let headers = Headers::new().of(&gate, &decision);
    /// assert_eq!(headers["ratelimit"], r#""api";r=99;t=1"#);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn of(&self, gate: &Gate, decision: &Decision) -> HeaderMap {
        self.of_policy(Policy::new(gate, None), decision)
    }

    /// Does the same as [`of`](Self::of) with the unit of a [rule](crate::GateRule::quota_unit), such as `tokens`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    /// use tidegate_http::Headers;
    ///
    /// let gate = Limiter::in_memory().gate("tokens", Quota::token_bucket(600, Rate::per_minute(600)));
    /// let decision = gate.check_cost("tenant:7", 450).await?;
    /// let headers = Headers::none().openai(true).of_unit(&gate, "tokens", &decision);
    /// assert_eq!(headers["x-ratelimit-remaining-tokens"], "150");
    /// assert_eq!(headers["x-ratelimit-reset-tokens"], "45s");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn of_unit(&self, gate: &Gate, unit: &str, decision: &Decision) -> HeaderMap {
        self.of_policy(Policy { unit: Some(unit.into()), ..Policy::new(gate, None) }, decision)
    }

    /// Does the same as [`of`](Self::of) by the quota that decided. For keys of which an operator's
    /// [override](tidegate::Control::set_override) can set another window: [`Gate::effective_quota`].
    #[must_use]
    pub fn of_quota(&self, quota: &Quota, decision: &Decision) -> HeaderMap {
        self.of_policy(Policy::of_quota(Some(*quota), None), decision)
    }

    pub(super) fn of_policy(&self, policy: Policy, decision: &Decision) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let policy = Policy { is_shadow: decision.is_shadow(), ..policy };
        let wait = (!decision.is_allowed()).then(|| self.jittered_wait(decision.retry_after()));
        let all = AllDecision::of_each([decision.clone()]);
        self.write(&mut headers, &HeaderValues { decision: &all, policies: &[policy], wait });
        if let Some(wait) = wait {
            self.write_wait(&mut headers, wait);
        }
        headers
    }

    /// Writes the wait of a rejection. A response of the user's own may have set it.
    pub(super) fn write_wait(&self, headers: &mut HeaderMap, wait: Duration) {
        let names = [self.retry_after.then_some(RETRY_AFTER), self.wait_name.map(HeaderName::from_static)];
        for name in names.into_iter().flatten() {
            headers.entry(name).or_insert(wait.as_secs().into());
        }
    }

    /// Returns the retry time to report: whole seconds, at least 1, plus jitter.
    pub(super) fn jittered_wait(&self, retry_after: Duration) -> Duration {
        Duration::from_secs(ceil_seconds(retry_after).max(1).saturating_add(fastrand::u64(0..=self.jitter_s)))
    }

    /// Returns whether limits in shadow mode are reported.
    pub(super) const fn reports_shadow(&self) -> bool {
        self.shadow
    }

    /// Appends a limit in shadow mode to the value of its header, if the header is sent. An in-flight limit has no
    /// window, and no reset time to report.
    pub(super) fn append_shadow(
        &self,
        value: &mut String,
        name: &str,
        decision: &Decision,
        has_window: bool,
    ) {
        if !self.shadow {
            return;
        }
        let comma = if value.is_empty() { "" } else { ", " };
        let remaining = decision.remaining();
        let reset = match decision.is_shadow() || remaining == 0 {
            true => ceil_seconds(decision.retry_after()).max(1),
            false => ceil_seconds(decision.reset_after()),
        };
        let denied = if decision.is_shadow() { ";denied" } else { "" };
        let _ = write!(value, "{comma}{};r={remaining}", Quoted(name));
        let _ = if has_window { write!(value, ";t={reset}{denied}") } else { write!(value, "{denied}") };
    }

    pub(super) fn write_shadow(&self, headers: &mut HeaderMap, value: &str) {
        // Escaped names are always valid header values.
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(value)) {
            headers.append(X_SHADOW, value);
        }
    }

    pub(super) fn write(&self, headers: &mut HeaderMap, values: &HeaderValues<'_>) {
        let mut fields = Fields::default();
        self.write_single(headers, values, &mut fields);
        if self.openai {
            by_unit::write(headers, values, &mut fields);
        }
        if self.draft == Some(Draft::Eleven) {
            named::write(values, &DRAFT_11, &mut fields);
        }
        fields.write(headers);
    }

    /// Writes the headers that report one limit.
    fn write_single(&self, headers: &HeaderMap, values: &HeaderValues<'_>, fields: &mut Fields) {
        let Some(reported) = values.reported_limit() else { return };
        let decision = &values.decision.each_alone()[reported];
        let (limit, remaining) = (decision.limit(), decision.remaining());
        let reset = values.reset(reported);
        let number = |text: &str| text.parse::<u64>().ok();
        let inner = || {
            let limit = number_in(headers, &X_LIMIT, number)?;
            Some((limit, number_in(headers, &X_REMAINING, number)?))
        };
        if self.x_ratelimit && is_tighter(decision, inner()) {
            for (name, number) in [(X_LIMIT, limit), (X_REMAINING, remaining), (X_RESET, reset)] {
                fields.push_number(number).end_single(name);
            }
        }
        if self.draft == Some(Draft::Seven) {
            values.write_unnamed_policies(reported, fields);
            fields.end_list(RATELIMIT_POLICY);
            let member = |name| {
                number_in(headers, &RATELIMIT, |text| {
                    text.split_once(name)?.1.split(',').next()?.parse().ok()
                })
            };
            if is_tighter(decision, member("limit=").zip(member("remaining="))) {
                fields.push("limit=").push_number(limit).push(", remaining=").push_number(remaining);
                fields.push(", reset=").push_number(reset).end_single(RATELIMIT);
            }
        }
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a number that an inner layer has already written, if any.
fn number_in(headers: &HeaderMap, name: &HeaderName, parse: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    headers.get(name).and_then(|value| parse(value.to_str().ok()?))
}

/// Returns whether a smaller share of the limit is left than of that of an inner layer: its limit and its remaining units.
fn is_tighter(decision: &Decision, inner: Option<(u64, u64)>) -> bool {
    let share = |remaining: u64, other_limit: u64| u128::from(remaining) * u128::from(other_limit);
    inner.is_none_or(|(limit, remaining)| {
        share(decision.remaining(), limit) < share(remaining, decision.limit())
    })
}

/// The names that a draft gives to fields and parameters, the latter as they are sent: `;q=`. Each draft is one constant,
/// so that a draft that only renames them needs no other change.
struct Spelling {
    /// The field that lists the policies.
    policy_field: HeaderName,
    /// The field that lists the current limits.
    limit_field: HeaderName,
    /// Of a policy: its units per window.
    quota: &'static str,
    /// Of a policy: the name of its unit, if it is not the default.
    unit: &'static str,
    /// Of a policy: its window in seconds.
    window: &'static str,
    /// Of a limit: the units that remain.
    remaining: &'static str,
    /// Of a limit: the seconds until it is available again.
    reset: &'static str,
    /// Of both: the partition that the units belong to.
    partition_key: &'static str,
}

const DRAFT_11: Spelling = Spelling {
    policy_field: RATELIMIT_POLICY,
    limit_field: RATELIMIT,
    quota: ";q=",
    unit: ";qu=",
    window: ";w=",
    remaining: ";r=",
    reset: ";t=",
    partition_key: ";pk=",
};

//! The decision on one check.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;

use crate::error::gate_name::GateName;
use crate::error::redact::RedactedKey;

/// The component that made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Source {
    /// Redis decided.
    Redis,
    /// The in-memory store decided: [`Limiter::in_memory`](crate::Limiter::in_memory).
    Memory,
    /// This process had cached a denial by Redis that still holds:
    /// [`Builder::deny_cache`](crate::Builder::deny_cache).
    DenyCache,
    /// A lease had the units: [`Gate::leased`](crate::Gate::leased). Redis was not called.
    Lease,
    /// Redis was unavailable, and this process decided within its share:
    /// [`OnFailure::Local`](crate::OnFailure::Local).
    Local,
    /// Redis was unavailable, and [`OnFailure::Open`](crate::OnFailure::Open) admitted the check; or a gate
    /// in [shadow mode](crate::Gate::shadow) could not decide, or its limit is below the cost.
    Open,
    /// Redis was unavailable, and [`OnFailure::Closed`](crate::OnFailure::Closed) denied the check.
    Closed,
    /// A rule with `requests_per_unit: 0` denied it, without a call to Redis.
    Rule,
    /// An operator has opened or closed the gate for the whole fleet:
    /// [`Control::switch`](crate::Control::switch). Redis was not called.
    Switch,
}

impl Source {
    /// All sources, in the order of their numbers.
    pub(crate) const ALL: [Self; 9] = [
        Self::Redis,
        Self::Memory,
        Self::DenyCache,
        Self::Lease,
        Self::Local,
        Self::Open,
        Self::Closed,
        Self::Rule,
        Self::Switch,
    ];

    /// Returns the label for metrics and texts, such as `redis`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Memory => "memory",
            Self::DenyCache => "deny_cache",
            Self::Lease => "lease",
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Rule => "rule",
            Self::Switch => "switch",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The decision on one check: whether it is admitted, and the values to report to the client.
///
/// All times are durations from the moment at which the server decided. They do not depend on this machine's
/// clock, except that leases and the deny cache subtract the time passed since. The examples use a token
/// bucket of 5, refilled 1/s, checked six times at once.
#[must_use = "a decision that nobody looks at limits nothing"]
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Decision {
    pub(crate) gate: GateName,
    pub(crate) allowed: bool,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    #[cfg_attr(feature = "serde", serde(rename = "retry_after", serialize_with = "as_duration"))]
    pub(crate) retry_after_us: u64,
    #[cfg_attr(feature = "serde", serde(rename = "reset_after", serialize_with = "as_duration"))]
    pub(crate) reset_after_us: u64,
    #[cfg_attr(feature = "serde", serde(rename = "delay", serialize_with = "as_duration"))]
    pub(crate) delay_us: u64,
    pub(crate) source: Source,
    pub(crate) shadow: bool,
    /// The server's clock when it decided, in µs since 1970; 0 if no store decided.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) now_us: u64,
    /// Identifies the take to its refunds.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) stamp_us: u64,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) is_within_limit: bool,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) is_blocked: bool,
}

impl Decision {
    /// The [`retry_after`](Self::retry_after) of a denial that does not depend on the units used: one second.
    pub const FIXED_RETRY: Duration = Duration::from_secs(1);

    /// Makes the decision of a limit that counts nothing, such as a rule that denies every request: a denial
    /// with this wait, or an admission if the wait is zero. In shadow mode, a denial
    /// [is reported](Self::is_shadow), and the check is admitted.
    ///
    /// # Panics
    ///
    /// If the gate's name is longer than 64 bytes.
    pub fn uncounted(gate: &str, wait: Duration, source: Source, in_shadow: bool) -> Self {
        let name = GateName::new(gate).expect("a gate's name has at most 64 bytes");
        let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let shadow = wait_us > 0 && in_shadow;
        Self {
            retry_after_us: wait_us,
            reset_after_us: wait_us,
            shadow,
            ..Self::fixed(name, 0, shadow || wait_us == 0, source)
        }
    }

    /// Turns a peek into a denial, without counting it: see [`Check::deny`](crate::Check::deny), which does. If the peek would
    /// admit, the [`retry_after`](Self::retry_after) of the denial is the time until the limit is entirely available.
    pub fn into_denied(self) -> Self {
        let retry_after_us = if self.allowed { self.reset_after_us } else { self.retry_after_us };
        Self { allowed: false, shadow: false, retry_after_us, ..self }
    }

    /// Admits at once, as a gate in shadow mode does.
    pub fn into_shadow(self) -> Self {
        Self { shadow: !self.allowed, allowed: true, delay_us: 0, ..self }
    }

    /// Turns a peek into the admission of a check of no units, if the key [is within its limit](Self::is_within_limit).
    pub fn into_admitted_within_limit(self) -> Self {
        match self.is_within_limit {
            true => Self { allowed: true, shadow: false, ..self },
            false => self,
        }
    }

    /// Returns this decision with the state that a charge of `units` leaves in its fixed window. For a check of these units
    /// that its gate decided, and that charged nothing.
    pub fn after_window_charge(self, units: u64) -> Self {
        let remaining = self.remaining.saturating_sub(units);
        // The charge begins a window, which ends at the stamp, unless one has begun.
        let reset_after_us = self.reset_after_us.max(self.stamp_us.saturating_sub(self.now_us));
        let is_used_up = remaining < units;
        let retry_after_us =
            if is_used_up { reset_after_us.max(self.retry_after_us) } else { self.retry_after_us };
        Self { remaining, reset_after_us, retry_after_us, ..self }
    }

    /// Returns whether the store admitted the check with less than 20 % of the limit left. The units left in a lease or
    /// in a share of the fallback do not show how near the limit is.
    #[inline]
    pub(crate) fn is_near_limit(&self) -> bool {
        let is_from_store = matches!(self.source, Source::Redis | Source::Memory);
        let is_admitted = is_from_store && self.allowed && !self.shadow;
        is_admitted && u128::from(self.remaining) * 5 < u128::from(self.limit)
    }

    /// Makes a decision that does not depend on the units used.
    pub(crate) fn fixed(gate: GateName, limit: u64, allowed: bool, source: Source) -> Self {
        let wait_us = if allowed { 0 } else { Self::FIXED_RETRY.as_micros() as u64 };
        Self {
            gate,
            allowed,
            limit,
            remaining: if allowed { limit } else { 0 },
            retry_after_us: wait_us,
            reset_after_us: wait_us,
            delay_us: 0,
            source,
            shadow: false,
            now_us: 0,
            stamp_us: 0,
            is_within_limit: false,
            is_blocked: false,
        }
    }

    /// Returns, of a peek that the store decided, whether at most as many units are used as the limit has, and the key is
    /// not blocked. At exactly the limit, the peek is denied, because no unit is left, and this is true. False of all other
    /// decisions.
    #[must_use]
    pub const fn is_within_limit(&self) -> bool {
        self.is_within_limit
    }

    /// Returns whether the key is [blocked](crate::Gate::block), or [banned](crate::Gate::ban): then
    /// [`retry_after`](Self::retry_after) is at least the rest of the block. The state does not tell the one from the
    /// other. False of decisions that neither the store nor the deny cache made.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Returns whether the check is admitted. For a peek: whether one unit would be admitted now.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the name of the gate.
    #[must_use]
    pub fn gate(&self) -> &str {
        &self.gate
    }

    /// Returns the quota's limit: 5.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the units left after this check: 4 after the first, 0 after the fifth.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the time until another check of this cost would be admitted, if no other check came: zero
    /// after the first four, 1 s after the fifth and the sixth. Exact to the microsecond: an earlier check is
    /// denied.
    #[must_use]
    pub const fn retry_after(&self) -> Duration {
        Duration::from_micros(self.retry_after_us)
    }

    /// Returns the time until the key would be unused again: 5 s after the fifth and the sixth.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after_us)
    }

    /// Returns how long an admitted check of a leaky bucket waits for its turn; zero for all other
    /// algorithms.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us)
    }

    /// Returns the component that decided.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Returns the label for metrics and traces: `allowed`, `denied`, or `shadow_denied` for a check that was
    /// admitted only because of shadow mode.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match (self.shadow, self.allowed) {
            (true, _) => "shadow_denied",
            (false, true) => "allowed",
            (false, false) => "denied",
        }
    }

    /// Returns whether the gate would have denied the check, and admitted it because of shadow mode.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns whether this decision, of several independent ones, has the longer wait or the smaller
    /// remainder.
    #[must_use]
    pub fn is_tighter_than(&self, other: &Self) -> bool {
        let share = |of: &Self, limit: &Self| u128::from(of.remaining) * u128::from(limit.limit);
        match (self.allowed, other.allowed) {
            (true, true) => share(self, other) < share(other, self),
            (false, false) => self.retry_after_us > other.retry_after_us,
            (is_allowed, _) => !is_allowed,
        }
    }

    /// Returns the decision with its times counted from `age` after it was made.
    pub fn aged(mut self, age: Duration) -> Self {
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        for time_us in [&mut self.retry_after_us, &mut self.reset_after_us, &mut self.delay_us] {
            *time_us = time_us.saturating_sub(age_us);
        }
        self
    }

    /// Returns the server's time of this decision, in µs since the Unix epoch, for audits and tests. The times of
    /// `Redis` and `Memory` order the decisions on one key across the fleet.
    ///
    /// | [`source`](Self::source) | time |
    /// | --- | --- |
    /// | `Redis`, `Memory` | when the store decided |
    /// | `DenyCache` | when the cached denial was made, plus the time since it was received |
    /// | `Lease` | when the store charged the leased units |
    /// | `Local` | this process's clock |
    /// | all others | 0 |
    #[must_use]
    pub const fn server_now_us(&self) -> u64 {
        self.now_us
    }
}

#[cfg(feature = "serde")]
fn as_duration<S: serde::Serializer>(us: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&Duration::from_micros(*us), serializer)
}

#[cfg(feature = "serde")]
fn as_sequence<S: serde::Serializer>(decisions: &[Decision], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(decisions)
}

/// Shows the fields by the names of their methods.
impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("gate", &self.gate)
            .field("allowed", &self.allowed)
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("delay", &self.delay())
            .field("source", &self.source)
            .field("shadow", &self.shadow)
            .field("now_us", &self.now_us)
            .finish()
    }
}

/// Displays `allowed, 4 of 5 left` or `denied, retry after 1s`, for example.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.allowed, self.delay()) {
            (true, Duration::ZERO) => write!(f, "allowed, {} of {} left", self.remaining, self.limit),
            (true, delay) => write!(f, "allowed after {delay:?}, {} of {} left", self.remaining, self.limit),
            (false, _) => write!(f, "denied, retry after {:?}", self.retry_after()),
        }
    }
}

/// The result of [`Limiter::check_all`](crate::Limiter::check_all): several checks, all admitted or none
/// charged.
#[must_use = "a decision that nobody looks at limits nothing"]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AllDecision {
    pub(crate) allowed: bool,
    pub(crate) binding: usize,
    pub(crate) binding_key: Option<RedactedKey>,
    pub(crate) retry_after: Duration,
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_sequence"))]
    pub(crate) decisions: SmallVec<[Decision; 1]>,
}

impl AllDecision {
    /// Combines the decisions of independent checks: allowed if each is. A denial in shadow mode adds no wait.
    ///
    /// # Panics
    ///
    /// If there is no decision.
    pub fn of_each(decisions: impl IntoIterator<Item = Decision>) -> Self {
        let decisions: SmallVec<[Decision; 1]> = decisions.into_iter().collect();
        assert!(!decisions.is_empty(), "decisions of independent checks need at least one");
        let tightest = |best, at: usize| match decisions[at].is_tighter_than(&decisions[best]) {
            true => at,
            false => best,
        };
        Self {
            allowed: decisions.iter().all(Decision::is_allowed),
            binding: (0..decisions.len()).reduce(tightest).unwrap_or(0),
            binding_key: None,
            retry_after: decisions
                .iter()
                .filter(|it| !it.shadow)
                .map(Decision::retry_after)
                .max()
                .unwrap_or_default(),
            decisions,
        }
    }

    /// Returns whether all checks are admitted; if not, nothing was charged.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the decision of the binding check: if denied, the one with the longest wait; if allowed, the
    /// one with the smallest share left. A check of cost 0 binds only if all costs are 0.
    ///
    /// [`binding_index`](Self::binding_index) and [`binding_key`](Self::binding_key) tell which check it was, and
    /// so does the text: `denied by check 0 (gate "posts.user", key "us…" (14 bytes)), retry after 1s`.
    pub fn binding(&self) -> &Decision {
        &self.decisions[self.binding]
    }

    /// Returns the index of the [binding](Self::binding) check among the given checks.
    #[must_use]
    pub const fn binding_index(&self) -> usize {
        self.binding
    }

    /// Returns the key of the [binding](Self::binding) check in redacted form. `None` if this was made by
    /// [`of_each`](Self::of_each).
    #[must_use]
    pub const fn binding_key(&self) -> Option<RedactedKey> {
        self.binding_key
    }

    /// Returns the decision that each gate made alone, one per check in the given order. If another gate denied,
    /// a check that its own gate admits was neither admitted nor charged:
    /// [`is_allowed`](Self::is_allowed) of the whole decides.
    pub fn each_alone(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns the time until the same checks would all be admitted, if no other check came: the longest of
    /// theirs, zero if they would be now.
    #[must_use]
    pub const fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Returns the decisions of [`each_alone`](Self::each_alone).
    #[must_use]
    pub fn into_each_alone(self) -> Vec<Decision> {
        self.decisions.into_vec()
    }

    /// Replaces one of the decisions, for example by a later state of its key. Whether all are admitted, the
    /// wait, and which decision binds stay.
    ///
    /// # Panics
    ///
    /// If there is no decision at this index.
    pub fn replace(&mut self, index: usize, decision: Decision) {
        self.decisions[index] = decision;
    }

    /// Returns the decision with its times counted from `age` after it was made.
    pub fn aged(mut self, age: Duration) -> Self {
        self.retry_after = self.retry_after.saturating_sub(age);
        self.decisions = self.decisions.into_iter().map(|decision| decision.aged(age)).collect();
        self
    }

    /// Turns this into a denial, regardless of the decisions.
    pub fn denied(self) -> Self {
        Self { allowed: false, ..self }
    }

    /// Returns the longest delay of the checks.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.decisions.iter().map(Decision::delay).max().unwrap_or_default()
    }
}

/// Displays `denied by check 0 (gate "posts.user", key "…" (7 bytes)), retry after 1s`, for example.
impl fmt::Display for AllDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binding = self.binding();
        match self.allowed {
            true => write!(f, "allowed, {} of {} left at", binding.remaining, binding.limit)?,
            false => f.write_str("denied by")?,
        }
        write!(f, " check {} (gate \"{}\"", self.binding, binding.gate())?;
        if let Some(key) = self.binding_key {
            write!(f, ", key {key}")?;
        }
        match self.allowed {
            true => f.write_str(")"),
            false => write!(f, "), retry after {:?}", self.retry_after),
        }
    }
}

// The result of taking as many units as are available.

/// The result of [`Gate::take_up_to`](crate::Gate::take_up_to): of n equal checks, the number that was admitted and
/// charged, and the decision on all of them together.
///
/// The decision is allowed if at least one check was granted; for n = 0, which is a peek, if one would be. Its values
/// are those after the grant: [`remaining`](Decision::remaining), [`reset_after`](Decision::reset_after),
/// [`retry_after`](Decision::retry_after), which is the time until one more check would be granted, and
/// [`delay`](Decision::delay), which at a leaky bucket is the time until the turn of the last granted check.
///
/// [`Limiter::take_up_to`](crate::Limiter::take_up_to) returns it with an [`AllDecision`](crate::AllDecision).
#[must_use = "a grant that nobody looks at limits nothing"]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Grant<D = Decision> {
    granted: u64,
    wanted: u64,
    decision: D,
}

impl<D> Grant<D> {
    /// Makes the grant of `granted` of the `wanted` checks. For crates that combine grants.
    pub const fn new(granted: u64, wanted: u64, decision: D) -> Self {
        Self { granted, wanted, decision }
    }

    /// Returns how many of the [`wanted`](Self::wanted) checks were granted, each with the cost of one check: 0 to all.
    #[must_use]
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns how many checks the caller wanted: the n that it passed.
    #[must_use]
    pub const fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Returns whether all wanted checks were granted.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.granted == self.wanted
    }

    /// Returns the decision on all checks together.
    pub const fn decision(&self) -> &D {
        &self.decision
    }

    /// Returns the decision of [`decision`](Self::decision).
    pub fn into_decision(self) -> D {
        self.decision
    }
}

/// Displays `3 of 8 granted: allowed, 0 of 5 left`, for example.
impl<D: fmt::Display> fmt::Display for Grant<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} granted: {}", self.granted, self.wanted, self.decision)
    }
}

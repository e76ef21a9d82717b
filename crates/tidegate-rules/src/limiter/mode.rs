//! How requests are decided.

use tidegate::Decision;

use super::plan::{Plan, PlannedCheck};
use crate::rule::Rule;

/// How [`RulesLimiter::decide`](super::RulesLimiter::decide) decides a request: what it takes, and the options in which
/// services differ. All are off by default.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate::Limiter;
/// use tidegate_rules::{ChargedDenials, Descriptor, Mode, Rules};
///
/// let text = "{domain: api, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]}";
/// let limits = Rules::parse("api.yaml", text)?.bind(&Limiter::in_memory());
/// let of_hits = |hits| [Descriptor::new().entry("user", "ada").hits(hits)];
/// let as_envoy = Mode::check().deny_above_limit(true).charge_denied(ChargedDenials::All);
/// let denied = limits.decide("api", &of_hits(9), &as_envoy).await?.decision;
/// assert!(!denied.is_allowed());
/// assert!(!limits.check("api", &of_hits(1)).await?.is_allowed(), "the denied request was charged");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    pub(super) take: Take,
    pub(super) denies_above_limit: bool,
    peeks_pass_at_limit: bool,
    pub(super) charged_denials: ChargedDenials,
}

/// Which denied requests are charged: see [`Mode::charge_denied`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargedDenials {
    /// None.
    #[default]
    None,
    /// All except the denials of the [deny cache](tidegate::Builder::deny_cache).
    Uncached,
    /// All. Each denial of the deny cache then calls Redis.
    All,
}

/// What a request takes of each limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Take {
    #[default]
    Check,
    Peek,
    UpTo(u64),
    InFlight,
}

impl Mode {
    /// Charges the request if it is admitted.
    #[must_use]
    pub fn check() -> Self {
        Self::default()
    }

    /// Charges nothing, and acquires nothing of rules in flight: returns the decision that a check would get. Each descriptor
    /// is read on its own: those with one key are not summed, as a check sums them.
    #[must_use]
    pub fn peek() -> Self {
        Self { take: Take::Peek, ..Self::default() }
    }

    /// Charges as many of `n` equal requests as are admitted: a partial grant.
    #[must_use]
    pub fn up_to(n: u64) -> Self {
        Self { take: Take::UpTo(n), ..Self::default() }
    }

    /// Charges the request if it is admitted, and acquires a permit of each rule in flight.
    #[must_use]
    pub fn in_flight() -> Self {
        Self { take: Take::InFlight, ..Self::default() }
    }

    /// Sets whether a cost above the limit is a denial by that rule, instead of [`Error::is_over_capacity`]. For services
    /// whose clients do not know the limits.
    ///
    /// Such a denial charges nothing, except by [`charge_denied`](Self::charge_denied), and shows the units that are left.
    /// In a domain with `charge: each`, the other rules are charged, as beside any denial. A request that a rule with
    /// `requests_per_unit: 0` denies shows the states of its other limits, too, by peeks.
    ///
    /// [`Error::is_over_capacity`]: tidegate::Error::is_over_capacity
    #[must_use]
    pub const fn deny_above_limit(self, denies_above_limit: bool) -> Self {
        Self { denies_above_limit, ..self }
    }

    /// Sets whether descriptors with 0 hits pass at exactly their limit, as in envoyproxy/ratelimit. Only at limits that
    /// can be exceeded, which are fixed windows and those that charge units used: a peek of another one would never be
    /// denied.
    #[must_use]
    pub const fn peeks_pass_at_limit(self, peeks_pass_at_limit: bool) -> Self {
        Self { peeks_pass_at_limit, ..self }
    }

    /// Sets which denied requests are charged to the fixed windows that deny them. For services whose clients expect
    /// denied requests to count, as in envoyproxy/ratelimit: a denied request of several units then leaves none to smaller
    /// ones, and still counts if the limit is raised before its window ends. Applies to [`check`](Self::check) and
    /// [`in_flight`](Self::in_flight).
    ///
    /// Charges the rules that deny, also in shadow mode and in quota mode. Rules that admit a request that another one
    /// denies are charged by the check itself in a domain with `charge: each`, else not at all. Calendar windows are fixed
    /// windows. All other algorithms are left as they are: their debt would deny a client for longer than a window.
    ///
    /// Charges in a call after that of the decision, which waits for it until the limiter's
    /// [deadline](tidegate::Limiter::deadline) has passed since the request, and then shows the state after the charge.
    /// The denial holds without the charge: the observer is notified of an error. Requests between the two calls can be
    /// admitted, within the limit.
    ///
    /// Denials by the failure policy, by a switch, or by a rule with `requests_per_unit: 0` are not charged. Rules with
    /// `charge_used` have charged the request already. The quota of a key with an override decides whether it is a fixed
    /// window.
    #[must_use]
    pub const fn charge_denied(self, charged_denials: ChargedDenials) -> Self {
        Self { charged_denials, ..self }
    }

    /// Returns whether any denied requests are charged.
    #[must_use]
    pub const fn charges_denied(&self) -> bool {
        !matches!(self.charged_denials, ChargedDenials::None)
            && matches!(self.take, Take::Check | Take::InFlight)
    }

    /// Returns the decision to show for a check.
    pub(super) fn shown(&self, plan: &Plan<'_>, check: &PlannedCheck<'_>, decision: Decision) -> Decision {
        let can_exceed = |rule: &Rule| {
            rule.charges_used() || check.quota().is_some_and(|quota| quota.algorithm() == "fixed_window")
        };
        match check.cost() {
            0 if self.peeks_pass_at_limit && plan.rule(check).is_none_or(can_exceed) => {
                decision.into_admitted_within_limit()
            }
            _ => decision,
        }
    }
}

impl Take {
    /// Returns what is taken of these checks. Those that cost nothing are peeks, and without a rule in flight there is
    /// nothing to acquire.
    pub(super) fn of(self, checks: &[PlannedCheck<'_>]) -> Self {
        match self {
            _ if checks.iter().all(|check| check.cost() == 0) => Self::Peek,
            Self::InFlight if !checks.iter().any(PlannedCheck::is_in_flight) => Self::Check,
            take => take,
        }
    }

    /// Returns whether gates that charge units used do so. A partial grant takes units before they are used.
    pub(super) const fn charges_used(self) -> bool {
        matches!(self, Self::Check | Self::InFlight)
    }

    /// Returns the number of equal requests.
    pub(super) const fn wanted(self) -> u64 {
        match self {
            Self::Peek => 0,
            Self::Check | Self::InFlight => 1,
            Self::UpTo(n) => n,
        }
    }
}

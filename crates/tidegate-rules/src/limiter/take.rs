//! Takes from the limits of checks: together, or each on its own.

use futures_util::future::{join_all, try_join_all};
use tidegate::{Acquired, AllDecision, Decision, Error, Limiter, Permit, Permits, Source};

use super::mode::{Mode, Take};
use super::plan::{Plan, PlannedCheck};
use crate::rule::Rule;

/// What the checks that can deny took.
pub(super) struct Taken {
    /// Their joint decision if they were decided together, otherwise true.
    pub(super) passes: bool,
    /// How many of the wanted requests pass.
    pub(super) granted: u64,
    pub(super) decisions: Vec<Decision>,
    pub(super) permits: Permits,
}

/// What a check took on its own.
pub(super) struct TakenAlone {
    granted: u64,
    pub(super) decision: Decision,
    pub(super) permit: Option<Permit>,
}

impl Taken {
    /// Checks that deny the request, and took nothing.
    pub(super) fn denied(decisions: Vec<Decision>) -> Self {
        Self { passes: false, granted: 0, decisions, permits: Permits::default() }
    }

    fn apart(granted: u64, decisions: Vec<Decision>) -> Self {
        Self { passes: true, granted, decisions, permits: Permits::default() }
    }

    fn together(granted: u64, all: AllDecision, permits: Permits) -> Self {
        Self { passes: all.is_allowed(), granted, decisions: all.into_each_alone(), permits }
    }
}

impl TakenAlone {
    const fn new(decision: Decision) -> Self {
        Self { granted: 0, decision, permit: None }
    }
}

/// Takes from the checks that can deny: all or nothing, or each on its own.
pub(super) async fn take(limiter: &Limiter, plan: &Plan<'_>, mode: &Mode) -> Result<Taken, Error> {
    // The rare cases are boxed: a service allocates the future of each request.
    match (plan.checks(), mode.take) {
        ([], take) => Ok(Taken::apart(take.wanted(), Vec::new())),
        // A separate case, because only a single check can spend from a lease.
        ([check], Take::Check) => {
            let decision = match check.gate().check_cost(check.key(), check.cost()).await {
                Err(error) if error.is_over_capacity() && mode.denies_above_limit => {
                    Box::pin(deny_above_limit(check, Take::Check)).await?.decision
                }
                decided => decided?,
            };
            Ok(Taken::apart(1, vec![decision]))
        }
        (checks, take) => match take.of(checks) {
            take if checks.len() == 1 || plan.charges_each() || take == Take::Peek => {
                Box::pin(take_apart(limiter, plan, take, mode)).await
            }
            take => Box::pin(take_together(limiter, plan, take, mode)).await,
        },
    }
}

async fn take_together(limiter: &Limiter, plan: &Plan<'_>, take: Take, mode: &Mode) -> Result<Taken, Error> {
    let checks = plan.checks().iter().map(PlannedCheck::check);
    let taken = match take {
        Take::UpTo(n) => limiter.take_up_to(checks, n).await.map(|grant| {
            let granted = grant.granted();
            Taken::together(granted, grant.into_decision(), Permits::default())
        }),
        Take::InFlight => limiter.acquire_all(checks).await.map(|acquired| match acquired {
            Acquired::Admitted(permits, all) => Taken::together(1, all, permits),
            Acquired::Denied(all) => Taken::together(0, all, Permits::default()),
        }),
        Take::Check | Take::Peek => {
            limiter.check_all(checks).await.map(|all| Taken::together(1, all, Permits::default()))
        }
    };
    match taken {
        // Nothing was charged, except units that were used.
        Err(error) if error.is_over_capacity() && mode.denies_above_limit => {
            let mut decisions = peek_each(plan, plan.checks(), mode).await?;
            deny_costs(limiter, plan.checks(), &mut decisions);
            Ok(Taken::denied(decisions))
        }
        taken => taken,
    }
}

async fn take_apart(limiter: &Limiter, plan: &Plan<'_>, take: Take, mode: &Mode) -> Result<Taken, Error> {
    let checks = plan.checks();
    let taken = checks.iter().zip(take_each(limiter, checks, take).await);
    let taken = taken.map(async |(check, taken)| match taken {
        Err(error)
            if error.is_over_capacity() && (mode.denies_above_limit || check.gate().charges_used()) =>
        {
            deny_above_limit(check, take).await
        }
        taken => taken,
    });
    let taken = try_join_all(taken).await?;
    let granted = match take {
        Take::UpTo(n) => granted_apart(plan, &taken, n),
        take => take.wanted(),
    };
    let (mut decisions, mut permits) = (Vec::with_capacity(taken.len()), Permits::default());
    for alone in taken {
        decisions.push(alone.decision);
        permits.extend(alone.permit);
    }
    Ok(Taken { permits, ..Taken::apart(granted, decisions) })
}

/// Returns how many of `n` requests pass if each rule decided on its own.
fn granted_apart(plan: &Plan<'_>, taken: &[TakenAlone], n: u64) -> u64 {
    let charged = || plan.checks().iter().zip(taken).filter(|(check, _)| check.cost() > 0);
    let of_quotas = |is_quota: bool| {
        let is_of = move |check: &PlannedCheck<'_>| plan.rule(check).is_some_and(Rule::is_quota) == is_quota;
        charged().filter(move |(check, _)| is_of(check)).map(|(_, alone)| alone.granted)
    };
    of_quotas(false).min().unwrap_or(n).min(of_quotas(true).max().unwrap_or(n))
}

/// Takes from checks in shadow mode. One that would deny a cost above its limit shows the state of the limit.
pub(super) async fn take_shadow(
    limiter: &Limiter,
    checks: &[PlannedCheck<'_>],
    take: Take,
) -> Vec<Result<TakenAlone, Error>> {
    let taken = checks.iter().zip(take_each(limiter, checks, take.of(checks)).await);
    let shown = taken.map(async |(check, taken)| match taken {
        Ok(alone) if alone.decision.source() == Source::Open && check.cost() > alone.decision.limit() => {
            Ok(TakenAlone { decision: peek(check).await?.into_denied().into_shadow(), ..alone })
        }
        taken => taken,
    });
    join_all(shown).await
}

async fn take_each(
    limiter: &Limiter,
    checks: &[PlannedCheck<'_>],
    take: Take,
) -> Vec<Result<TakenAlone, Error>> {
    match take {
        Take::Check => {
            let decided = limiter.check_each(checks.iter().map(PlannedCheck::check)).await;
            decided.into_iter().map(|decided| decided.map(TakenAlone::new)).collect()
        }
        take => join_all(checks.iter().map(|check| take_alone(check, take))).await,
    }
}

async fn take_alone(check: &PlannedCheck<'_>, take: Take) -> Result<TakenAlone, Error> {
    let made = check.check();
    Ok(match take {
        Take::Peek => TakenAlone::new(made.peek().await?),
        Take::UpTo(n) => {
            let grant = made.take_up_to(n).await?;
            TakenAlone { granted: grant.granted(), ..TakenAlone::new(grant.into_decision()) }
        }
        Take::InFlight if check.is_in_flight() => match made.acquire().await? {
            Acquired::Admitted(permit, decision) => {
                TakenAlone { permit: Some(permit), ..TakenAlone::new(decision) }
            }
            Acquired::Denied(decision) => TakenAlone::new(decision),
        },
        Take::Check | Take::InFlight => TakenAlone::new(made.check().await?),
    })
}

/// Denies a check whose cost is above the limit. It shows the state of the limit.
async fn deny_above_limit(check: &PlannedCheck<'_>, take: Take) -> Result<TakenAlone, Error> {
    let peeked = peek(check).await?;
    Ok(TakenAlone::new(match take {
        Take::Peek => peeked.into_denied(),
        _ => check.check().deny(peeked),
    }))
}

/// Reads the limits of checks, each on its own: whether one unit is left.
pub(super) async fn peek_each(
    plan: &Plan<'_>,
    checks: &[PlannedCheck<'_>],
    mode: &Mode,
) -> Result<Vec<Decision>, Error> {
    let peeks = checks.iter().map(async |check| Ok(mode.shown(plan.rule(check), check, peek(check).await?)));
    try_join_all(peeks).await
}

async fn peek(check: &PlannedCheck<'_>) -> Result<Decision, Error> {
    check.gate().key(check.key()).peek().await
}

/// Denies, of peeked checks, those whose costs are above the units that are left.
pub(super) fn deny_costs(limiter: &Limiter, checks: &[PlannedCheck<'_>], peeked: &mut [Decision]) {
    for (at, (check, decision)) in checks.iter().zip(peeked).enumerate() {
        // Checks of one key are charged as one.
        let is_of_key = |other: &&PlannedCheck<'_>| {
            other.gate().name() == check.gate().name() && other.key() == check.key()
        };
        let of_key = checks[..=at].iter().filter(is_of_key);
        let cost = of_key.fold(0_u64, |sum, other| sum.saturating_add(other.cost()));
        let switch = check.gate().name().and_then(|name| limiter.control().current_switch(name));
        // A switch decides regardless of the cost. Units that were used have been charged already.
        if cost > decision.remaining() && switch.is_none() && !check.gate().charges_used() {
            *decision = check.check().deny(decision.clone());
        }
    }
}

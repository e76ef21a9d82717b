//! Takes from the limits of checks: together, or each on its own.

use futures_util::future::{join, join_all, try_join_all};
use tidegate::{Acquired, AllDecision, Decision, Error, Permits, Source};

use super::mode::{Mode, Take};
use super::plan::{Plan, PlannedCheck};
use crate::rule::Rule;

/// What checks took: one, or several.
#[derive(Default)]
pub(super) struct Taken {
    /// Their joint decision if they were decided together, otherwise true.
    pub(super) passes: bool,
    /// How many of the wanted requests pass, by the checks that admit any.
    pub(super) granted: u64,
    pub(super) decisions: Vec<Decision>,
    pub(super) permits: Permits,
}

/// What a check in shadow mode took.
type TakenInShadow = Result<(Decision, Permits), Error>;

impl Taken {
    fn alone(granted: u64, decision: Decision) -> Self {
        Self { passes: true, granted, decisions: vec![decision], permits: Permits::default() }
    }

    fn together(granted: u64, all: AllDecision, permits: Permits) -> Self {
        Self { passes: all.is_allowed(), granted, decisions: all.into_each_alone(), permits }
    }
}

/// Takes from the checks that can deny, and at the same time from those in shadow mode.
pub(super) async fn take(
    plan: &Plan<'_>,
    mode: &Mode,
    is_denied: bool,
) -> (Result<Taken, Error>, Vec<TakenInShadow>) {
    // The rare cases are boxed, here and below: a service allocates the future of each request.
    match plan.shadow_checks() {
        [] => (take_hard(plan, mode).await, Vec::new()),
        shadow => Box::pin(join(take_hard(plan, mode), take_shadow(shadow, mode.take, is_denied))).await,
    }
}

/// Takes from the checks that can deny: all or nothing, or each on its own.
async fn take_hard(plan: &Plan<'_>, mode: &Mode) -> Result<Taken, Error> {
    match (plan.checks(), mode.take.of(plan.checks())) {
        ([], _) => Ok(Taken { passes: true, granted: mode.take.wanted(), ..Taken::default() }),
        // A separate case, because only a single check can spend from a lease.
        ([check], take) if take == Take::Check || (take == Take::Peek && mode.take != Take::Peek) => {
            match check.gate().check_cost(check.key(), check.cost()).await {
                Err(error) => Box::pin(deny_cost(check, Take::Check, mode, error)).await,
                Ok(decision) => Ok(Taken::alone(u64::from(check.cost() > 0), decision)),
            }
        }
        (checks, take) if checks.len() == 1 || plan.charges_each() || take == Take::Peek => {
            Box::pin(take_apart(plan, take, mode)).await
        }
        (_, take) => Box::pin(take_together(plan, take, mode)).await,
    }
}

async fn take_together(plan: &Plan<'_>, take: Take, mode: &Mode) -> Result<Taken, Error> {
    let limiter = plan.checks()[0].gate().limiter();
    let checks = plan.checks().iter().map(PlannedCheck::check);
    let taken = match take {
        Take::UpTo(n) => limiter.take_up_to(checks, n).await.map(|grant| {
            let granted = grant.granted();
            Taken::together(granted, grant.into_decision(), Permits::default())
        }),
        Take::InFlight => limiter.acquire_all(checks).await.map(|acquired| match acquired {
            Acquired::Admitted(permits, all) => Taken::together(1, all, permits),
            Acquired::Denied(all) => Taken::together(1, all, Permits::default()),
        }),
        Take::Check | Take::Peek => {
            limiter.check_all(checks).await.map(|all| Taken::together(1, all, Permits::default()))
        }
    };
    match taken {
        // Nothing was charged, except units that were used.
        Err(error) if error.is_over_capacity() && mode.denies_above_limit => {
            let mut decisions = peek_each(plan, plan.checks(), mode).await?;
            deny_costs(plan.checks(), &mut decisions, mode);
            Ok(Taken { decisions, ..Taken::default() })
        }
        taken => taken,
    }
}

async fn take_apart(plan: &Plan<'_>, take: Take, mode: &Mode) -> Result<Taken, Error> {
    let checks = plan.checks();
    let taken = checks.iter().zip(take_each(checks, take).await);
    let taken = taken.map(async |(check, taken)| match taken {
        Err(error) => deny_cost(check, take, mode, error).await,
        taken => taken,
    });
    let taken = try_join_all(taken).await?;
    let granted = granted_apart(plan, &taken, take.wanted());
    let mut all = Taken { passes: true, granted, ..Taken::default() };
    for alone in taken {
        all.decisions.extend(alone.decisions);
        all.permits.extend(alone.permits.into_each());
    }
    Ok(all)
}

/// Returns how many of `n` requests pass if each rule decided on its own.
fn granted_apart(plan: &Plan<'_>, taken: &[Taken], n: u64) -> u64 {
    let of_quotas = |is_quota: bool| {
        let charged = plan.checks().iter().zip(taken).filter(move |(check, _)| {
            check.cost() > 0 && plan.rule(check).is_some_and(Rule::is_quota) == is_quota
        });
        charged.map(|(_, taken)| taken.granted)
    };
    of_quotas(false).min().unwrap_or(n).min(of_quotas(true).max().unwrap_or(n))
}

/// Takes from checks in shadow mode. One that would deny a cost above its limit shows the state of the limit. If the
/// request is denied, only units that were used are charged.
async fn take_shadow(checks: &[PlannedCheck<'_>], take: Take, is_denied: bool) -> Vec<TakenInShadow> {
    let charges = |check: &PlannedCheck<'_>| take.charges_used() && check.gate().charges_used();
    let taken = match is_denied {
        false => take_each(checks, take.of(checks)).await,
        true => {
            let take = |check| if charges(check) { Take::Check } else { Take::Peek };
            join_all(checks.iter().map(|check| take_alone(check, take(check)))).await
        }
    };
    let taken = checks.iter().zip(taken);
    let shown = taken.map(async |(check, taken)| {
        let Taken { mut decisions, permits, .. } = taken?;
        let decision = decisions.swap_remove(0);
        let is_above = decision.source() == Source::Open && check.cost() > decision.limit();
        let decision = if is_above { peek(check).await?.into_denied().into_shadow() } else { decision };
        Ok((decision, permits))
    });
    join_all(shown).await
}

/// Takes from each check on its own: each result has one decision.
async fn take_each(checks: &[PlannedCheck<'_>], take: Take) -> Vec<Result<Taken, Error>> {
    // A peek for one unit is a check that costs nothing.
    let costs_nothing = take == Take::Peek && checks.iter().all(|check| check.cost() <= 1);
    match checks {
        [first, ..] if take == Take::Check || costs_nothing => {
            let cost = |check: &PlannedCheck<'_>| if costs_nothing { 0 } else { check.cost() };
            let made = checks.iter().map(|check| check.check().cost(cost(check)));
            let decided = first.gate().limiter().check_each(made).await.into_iter();
            decided.map(|decided| Ok(Taken::alone(take.wanted(), decided?))).collect()
        }
        _ => join_all(checks.iter().map(|check| take_alone(check, take))).await,
    }
}

async fn take_alone(check: &PlannedCheck<'_>, take: Take) -> Result<Taken, Error> {
    let made = check.check();
    Ok(match take {
        Take::Peek => Taken::alone(0, made.peek().await?),
        Take::UpTo(n) => {
            let grant = made.take_up_to(n).await?;
            Taken::alone(grant.granted(), grant.into_decision())
        }
        Take::InFlight if check.is_in_flight() && check.cost() > 0 => match made.acquire().await? {
            Acquired::Admitted(permit, decision) => {
                Taken { permits: permit.into(), ..Taken::alone(1, decision) }
            }
            Acquired::Denied(decision) => Taken::alone(1, decision),
        },
        Take::Check | Take::InFlight => Taken::alone(1, made.check().await?),
    })
}

/// Denies a check that failed because its cost is above the limit, if that is a denial. It shows the state of the limit.
async fn deny_cost(check: &PlannedCheck<'_>, take: Take, mode: &Mode, error: Error) -> Result<Taken, Error> {
    // A check of units that were used never fails so, only its peek.
    if !error.is_over_capacity() || !(mode.denies_above_limit || check.gate().charges_used()) {
        return Err(error);
    }
    let peeked = peek(check).await?;
    Ok(Taken::alone(0, denied(check, take, peeked)))
}

/// Denies a check that was peeked at. Notifies the observer, unless the request only peeks.
fn denied(check: &PlannedCheck<'_>, take: Take, peeked: Decision) -> Decision {
    match take {
        Take::Peek => peeked.into_denied(),
        _ => check.check().deny(peeked),
    }
}

/// Reads the limits of checks, each on its own: whether one unit is left.
pub(super) async fn peek_each<'p, 'r: 'p>(
    plan: &Plan<'_>,
    checks: impl IntoIterator<Item = &'p PlannedCheck<'r>>,
    mode: &Mode,
) -> Result<Vec<Decision>, Error> {
    let checks: Vec<_> = checks.into_iter().collect();
    let Some(limiter) = checks.first().map(|check| check.gate().limiter()) else { return Ok(Vec::new()) };
    let peeked = limiter.check_each(checks.iter().map(|check| check.check().cost(0))).await;
    let shown = checks.into_iter().zip(peeked);
    shown.map(|(check, peeked)| Ok(mode.shown(plan, check, peeked?))).collect()
}

async fn peek(check: &PlannedCheck<'_>) -> Result<Decision, Error> {
    check.gate().key(check.key()).peek().await
}

/// Denies, of peeked checks, those whose costs are above the units that are left.
pub(super) fn deny_costs(checks: &[PlannedCheck<'_>], peeked: &mut [Decision], mode: &Mode) {
    for (at, (check, decision)) in checks.iter().zip(peeked).enumerate() {
        // Checks of one key are charged as one.
        let of_key = checks[..=at].iter().filter(|other| other.is_of_same_key(check));
        let cost = of_key.fold(0_u64, |sum, other| sum.saturating_add(other.cost()));
        let control = check.gate().limiter().control();
        let switch = check.gate().name().and_then(|name| control.current_switch(name));
        // A switch decides regardless of the cost. Units that were used have been charged already.
        if cost > decision.remaining() && switch.is_none() && !check.gate().charges_used() {
            *decision = denied(check, mode.take, decision.clone());
        }
    }
}

//! Decides checks of which some are at in-flight limits: an admission holds permits.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tidegate::{Acquired, AllDecision, Check, Decision, Error, Gate, Permit, Quota};

/// A decision, and the permits that its admission holds. Dropping them releases them.
pub(super) type Held<D> = Result<(D, Vec<Permit>), Error>;

/// Returns whether the gate has an in-flight limit.
pub(super) fn is_in_flight(gate: &Gate) -> bool {
    gate.quota().as_ref().is_some_and(Quota::is_in_flight)
}

/// Returns whether one of two gates has a ban, and the other an in-flight limit. One step cannot decide both: if it
/// acquires permits, it counts no denials.
pub(super) fn is_ban_beside_permits(one: &Gate, other: &Gate) -> bool {
    (one.has_ban() && is_in_flight(other)) || (other.has_ban() && is_in_flight(one))
}

/// Returns whether the check must be acquired: it takes units of an in-flight limit. Without a cost, it is a peek.
pub(super) fn needs_permit(check: &Check) -> bool {
    check.units() > 0 && check.quota().as_ref().is_some_and(Quota::is_in_flight)
}

/// Returns whether a request may wait for a permit inside the limiter, where the acquires of a key wait in order of
/// arrival. A restricted one would delay the critical ones behind it. A request with several checks would wait at the
/// head of each of its keys, also of those with free slots, and delay the requests of others behind it.
pub(super) fn can_wait(checks: &[Check]) -> bool {
    matches!(checks, [check] if check.restriction().is_none())
}

/// Decides the checks in one atomic step. A single check waits for its permit, for at most `max_wait`; several do not
/// wait.
pub(super) async fn acquire_all(checks: &[Check], max_wait: Duration) -> Held<AllDecision> {
    match checks {
        [check] => {
            let (decision, permits) = acquire(check, max_wait).await?;
            Ok((AllDecision::of_each([decision]), permits))
        }
        [first, ..] => Ok(match first.limiter().acquire_all(checks).await? {
            Acquired::Admitted(permits, decision) => (decision, permits.into_each()),
            Acquired::Denied(decision) => (decision, Vec::new()),
        }),
        [] => Err(Error::config("the request has no gate to check")),
    }
}

/// Decides the checks independently of each other, without waiting. Returns the results in the order of the
/// checks.
pub(super) async fn decide_each(checks: &[&Check]) -> Vec<Held<Decision>> {
    let (in_flight, rates): (Vec<&Check>, Vec<&Check>) = checks.iter().partition(|check| needs_permit(check));
    let acquired = join_all(in_flight.into_iter().map(|check| acquire(check, Duration::ZERO)));
    let decided = async {
        match &*rates {
            [] => Vec::new(),
            [first, ..] => first.limiter().check_each(rates.iter().copied()).await,
        }
    };
    let (acquired, decided) = join(acquired, decided).await;
    let decided = decided.into_iter().map(|decision| Ok((decision?, Vec::new())));
    in_order(checks.iter().copied(), acquired, decided)
}

/// Returns the results of checks in their order: those at in-flight limits, and the others.
pub(super) fn in_order<'c, T>(
    checks: impl IntoIterator<Item = &'c Check>,
    in_flight: impl IntoIterator<Item = T>,
    rates: impl IntoIterator<Item = T>,
) -> Vec<T> {
    let (mut in_flight, mut rates) = (in_flight.into_iter(), rates.into_iter());
    let next = |check| if needs_permit(check) { in_flight.next() } else { rates.next() };
    checks.into_iter().filter_map(next).collect()
}

async fn acquire(check: &Check, max_wait: Duration) -> Held<Decision> {
    Ok(match check.clone().acquire().max_wait(max_wait).await? {
        Acquired::Admitted(permit, decision) => (decision, vec![permit]),
        Acquired::Denied(decision) => (decision, Vec::new()),
    })
}

//! Makes the checks of rules in shadow mode, which do not affect whether the request is admitted.

use futures_util::future::{join, join_all};
use tidegate::{Check, Decision, Error, Permit};

use super::in_flight::{decide_each, needs_permit};
use super::wait_queue::GroupResult;

/// The results of checks, in their order, and the permits that they hold.
type Checked = (Vec<Result<Decision, Error>>, Vec<Permit>);

/// Decides the request by `result` and makes its checks in shadow mode: of rates at the same time, and of in-flight
/// limits after the admission. A request that waits is not in flight.
pub(super) async fn with_shadow(
    result: impl Future<Output = GroupResult>,
    checks: &[Check],
) -> (GroupResult, Checked) {
    let rates: Vec<&Check> = checks.iter().filter(|check| !needs_permit(check)).collect();
    let (result, rates) = join(result, decide_each(&rates)).await;
    let in_flight: Vec<&Check> = checks.iter().filter(|check| needs_permit(check)).collect();
    let is_admitted =
        matches!(&result, Ok((decision, _)) if decision.as_ref().is_none_or(|it| it.is_allowed()));
    let in_flight = match is_admitted {
        true => decide_each(&in_flight).await,
        false => {
            let peeks = in_flight.into_iter().map(|check| check.clone().peek());
            join_all(peeks).await.into_iter().map(|decision| Ok((decision?, Vec::new()))).collect()
        }
    };
    let (mut rates, mut in_flight) = (rates.into_iter(), in_flight.into_iter());
    let (mut decisions, mut permits) = (Vec::with_capacity(checks.len()), Vec::new());
    for check in checks {
        let checked = if needs_permit(check) { in_flight.next() } else { rates.next() };
        decisions.extend(checked.map(|checked| {
            checked.map(|(decision, acquired)| {
                permits.extend(acquired);
                decision
            })
        }));
    }
    (result, (decisions, permits))
}

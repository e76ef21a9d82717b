//! Makes the checks of rules in shadow mode, which do not affect whether the request is admitted.

use futures_util::future::{join, join_all};
use tidegate::{Check, Decision, Error, Permit};

use super::in_flight::{decide_each, in_order, needs_permit};
use super::wait_queue::GroupResult;

/// The results of checks, in their order, and the permits that they hold.
type Checked = (Vec<Result<Decision, Error>>, Vec<Permit>);

/// Decides the request by `result` and makes its checks in shadow mode: of rates at the same time, and of in-flight
/// limits after the admission. A request that waits is not in flight.
pub(super) async fn with_shadow(
    result: impl Future<Output = GroupResult>,
    checks: &[Check],
) -> (GroupResult, Checked) {
    let (in_flight, rates): (Vec<&Check>, Vec<&Check>) = checks.iter().partition(|check| needs_permit(check));
    let (result, rates) = join(result, decide_each(&rates)).await;
    let is_admitted =
        matches!(&result, Ok((decision, _)) if decision.as_ref().is_none_or(|it| it.is_allowed()));
    let in_flight = match is_admitted {
        true => decide_each(&in_flight).await,
        false => {
            let peeks = in_flight.into_iter().map(|check| check.clone().peek());
            join_all(peeks).await.into_iter().map(|decision| Ok((decision?, Vec::new()))).collect()
        }
    };
    let mut permits = Vec::new();
    let decisions = in_order(checks, in_flight, rates).into_iter().map(|checked| {
        let (decision, acquired) = checked?;
        permits.extend(acquired);
        Ok(decision)
    });
    let decisions = decisions.collect();
    (result, (decisions, permits))
}

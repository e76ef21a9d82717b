//! The wait queue: requests that wait for their turn.

mod estimate;
mod key_queues;
mod position;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tidegate::{AllDecision, Error, Limiter};

use self::key_queues::QueueName;
use self::position::{Denial, Position, SharedQueues, Turn};
use super::check_group::{CheckGroup, Wait};
use super::in_flight::needs_permit;

/// The shortest pause before a retry. The retry time of a denial can be zero, for example while another
/// process holds the units in a lease.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// How often the oldest head of a queue looks whether an operator has switched its gates.
const SWITCH_POLL: Duration = Duration::from_secs(1);

/// A wait queue, bounded in time and number. Clones share it.
///
/// A denied request waits in the queue of one of its keys: that of the denial with the longest retry time.
/// Only the heads of a queue make checks. If another key denies one, it moves to the queue of that key. A head
/// denied by an in-flight limit waits in the limiter for a permit if that limit is its only check. With other checks it
/// polls: in the limiter, it would keep requests of other keys from a limit that it shares with them.
#[derive(Clone)]
pub(super) struct WaitQueue {
    max_wait: Duration,
    waiting: SharedQueues,
    /// Admitted requests that wait for the delay of a leaky bucket. They have permits of their own, so that
    /// they do not keep others from waiting.
    delayed: SharedQueues,
}

/// The permit of an admitted request to wait for the delay of its decision.
pub(super) struct DelayPermit(Option<Position>);

/// The decision on a [`CheckGroup`], and a permit if it has a delay. The decision is `None` if no check can
/// deny the request.
pub(super) type GroupResult = Result<(Option<AllDecision>, Option<DelayPermit>), Error>;

enum QueueCheck {
    Admitted(AllDecision, Option<DelayPermit>),
    Denied(Denial),
}

impl WaitQueue {
    pub(super) fn new(max_wait: Duration, max_waiting: usize) -> Self {
        Self { max_wait, waiting: SharedQueues::new(max_waiting), delayed: SharedQueues::new(max_waiting) }
    }

    /// Decides a request, after a wait if necessary. A check in flight holds no permit to wait, except that of
    /// a head. At a leaky bucket it holds a permit to wait for its delay.
    ///
    /// The future is boxed so that it does not enlarge the types of the services around the layer.
    pub(super) fn decide<'a>(&'a self, group: &'a mut CheckGroup) -> BoxFuture<'a, GroupResult> {
        Box::pin(async {
            let (decision, permit) = self.decide_now(group).await?;
            Ok((Some(decision), permit))
        })
    }

    async fn decide_now(&self, group: &mut CheckGroup) -> Result<(AllDecision, Option<DelayPermit>), Error> {
        let limiter = group.checks[0].limiter();
        let arrival = limiter.stopwatch();
        let remaining = || self.max_wait.saturating_sub(arrival.elapsed());
        let mut checked_before = None;
        let mut backoff = Backoff::default();
        // While other requests wait for one of the keys, a check would overtake them.
        let mut position = if let Some((queue, cost)) = self.queue_ahead(group) {
            match self.waiting.join(queue.clone(), cost, remaining()) {
                Some(position) => position,
                None => return self.reject(group, &limiter, &queue).await,
            }
        } else {
            let denial = match self.check(group, &limiter, remaining(), Duration::ZERO).await? {
                QueueCheck::Admitted(decision, permit) => return Ok((decision, permit)),
                QueueCheck::Denied(denial) => denial,
            };
            if is_too_long(&denial.wait, remaining()) {
                return Ok((denial.decision(), None));
            }
            match self.waiting.join(denial.queue.clone(), denial.cost, remaining()) {
                Some(position) => {
                    // A wait for others would make the denial stale.
                    checked_before = position.is_head().then_some(QueueCheck::Denied(denial));
                    position
                }
                None => return Ok((denial.decision(), None)),
            }
        };
        loop {
            if position.turn(limiter.sleep(remaining())).await != Some(Turn::Head) {
                let queue = position.queue().clone();
                drop(position);
                return self.reject(group, &limiter, &queue).await;
            }
            let checked = match checked_before.take() {
                Some(checked) => checked,
                None => self.check(group, &limiter, remaining(), Duration::ZERO).await?,
            };
            let denial = match checked {
                QueueCheck::Admitted(decision, permit) => {
                    let has_more = has_more(group, &decision, position.queue());
                    position.leave_admitted(has_more);
                    return Ok((decision, permit));
                }
                QueueCheck::Denied(denial) => Arc::new(denial),
            };
            position.record_denial(&denial);
            if is_too_long(&denial.wait, remaining()) {
                return Ok((denial.decision(), None));
            }
            if !position.is_head() {
                continue;
            }
            if group.awaits_permit(&denial.decision()) {
                // The limiter knows when a request of this process releases a permit, and polls for others.
                checked_before = self.await_permit(group, &limiter, remaining()).await?;
                // While Redis is unavailable, the limiter denies at once.
                if let Some(QueueCheck::Denied(denial)) = &checked_before
                    && !is_too_long(&denial.wait, remaining())
                {
                    let pause = denial.wait.until_retry.max(MIN_WAIT);
                    sleep_until_retry(&limiter, group, pause.min(remaining())).await;
                }
            } else {
                let pause = match group.is_denied_in_flight(&denial.decision()) {
                    true => backoff.next(),
                    false => denial.wait.until_retry.max(MIN_WAIT),
                };
                sleep_until_retry(&limiter, group, pause.min(remaining())).await;
            }
        }
    }

    /// Returns the queue that a new request joins without a check, and the cost of its check there: of the
    /// queues of its keys, the one with the longest wait. A request that switches decide joins none.
    fn queue_ahead(&self, group: &CheckGroup) -> Option<(QueueName, u64)> {
        let queues = self.waiting.lock();
        if queues.is_empty() || group.is_decided_by_switches() {
            return None;
        }
        let checks = group.checks.iter().filter(|check| !check.is_shadow() && check.units() > 0);
        let ahead = checks.filter_map(|check| {
            let (name, cost) = (QueueName::of(check), check.units());
            let wait = queues.get(&name)?.min_wait(cost);
            Some((wait, name, cost))
        });
        ahead.max_by_key(|(wait, ..)| *wait).map(|(_, name, cost)| (name, cost))
    }

    /// Makes the checks, and waits in the limiter for a permit. Returns `None` if an operator has switched the gates
    /// meanwhile so that the switches decide.
    async fn await_permit(
        &self,
        group: &mut CheckGroup,
        limiter: &Limiter,
        remaining: Duration,
    ) -> Result<Option<QueueCheck>, Error> {
        let watched = CheckGroup::all(group.checks.clone());
        let checked = pin!(self.check(group, limiter, remaining, remaining));
        // Dropping the check leaves the limiter's queue.
        match select(checked, pin!(sleep_until_retry(limiter, &watched, Duration::MAX))).await {
            Either::Left((checked, _)) => checked.map(Some),
            Either::Right(_) => Ok(None),
        }
    }

    /// Makes the checks. `for_permit`: how long they wait for a permit.
    async fn check(
        &self,
        group: &mut CheckGroup,
        limiter: &Limiter,
        remaining: Duration,
        for_permit: Duration,
    ) -> Result<QueueCheck, Error> {
        let leaky = group.checks.iter().find(|check| check.quota().is_some_and(|it| it.has_queue()));
        let delay_queue = QueueName::of(leaky.unwrap_or(&group.checks[0]));
        // A check that could not wait for its delay must not take a slot of the bucket.
        let reserved = leaky.and_then(|_| self.delayed.reserve(&delay_queue));
        let can_delay = leaky.is_none() || reserved.is_some();
        group.set_max_delay(if can_delay { remaining } else { Duration::ZERO });
        let sent = limiter.stopwatch();
        let decision = group.decide_within(for_permit).await?;
        if !decision.is_allowed() {
            return Ok(QueueCheck::Denied(Denial::new(group, decision, sent)));
        }
        let permit = (decision.delay() > Duration::ZERO)
            .then(|| DelayPermit(self.delayed.join(delay_queue, 1, Duration::MAX)));
        Ok(QueueCheck::Admitted(decision, permit))
    }

    /// Denies a request that cannot wait, or not any longer, unless switches decide it. Copies the latest denial
    /// of a head if that has the same checks. Otherwise peeks.
    async fn reject(
        &self,
        group: &mut CheckGroup,
        limiter: &Limiter,
        queue: &QueueName,
    ) -> Result<(AllDecision, Option<DelayPermit>), Error> {
        if group.is_decided_by_switches() {
            return Ok(match self.check(group, limiter, Duration::ZERO, Duration::ZERO).await? {
                QueueCheck::Admitted(decision, permit) => (decision, permit),
                QueueCheck::Denied(denial) => (denial.decision(), None),
            });
        }
        let denial = self.waiting.lock().get(queue).and_then(|queue| queue.denial().cloned());
        let copied = denial.and_then(|denial| denial.decision_for(group));
        match copied {
            Some(decision) => Ok((decision, None)),
            None => Ok((group.peek().await?.denied(), None)),
        }
    }
}

impl DelayPermit {
    /// Sleeps for the delay of a decision. Returns false if the request has lost its permit to one of another
    /// key before the end.
    pub(super) async fn sleep(self, sleep: impl Future<Output = ()>) -> bool {
        let Self(Some(mut position)) = self else { return false };
        let mut sleep = std::pin::pin!(sleep);
        match position.turn(sleep.as_mut()).await {
            Some(Turn::Displaced) => return false,
            // The head of a queue keeps its permit.
            Some(Turn::Head) => sleep.await,
            None => {}
        }
        true
    }
}

fn is_too_long(wait: &Wait, remaining: Duration) -> bool {
    remaining.is_zero() || wait.until_entry > remaining
}

/// Returns whether the gate of this queue would admit another request of the admitted one's cost.
fn has_more(group: &CheckGroup, decision: &AllDecision, queue: &QueueName) -> bool {
    let mut decisions = group.checks.iter().zip(decision.each_alone());
    decisions.any(|(check, decision)| {
        let has_more = match needs_permit(check) {
            true => decision.remaining() >= check.units(),
            false => decision.retry_after().is_zero(),
        };
        has_more && QueueName::of(check) == *queue
    })
}

/// Sleeps until the retry time, or until an operator has switched the gates so that the switches decide.
async fn sleep_until_retry(limiter: &Limiter, group: &CheckGroup, until_retry: Duration) {
    let slept = limiter.stopwatch();
    loop {
        let left = until_retry.saturating_sub(slept.elapsed());
        limiter.sleep(left.min(SWITCH_POLL)).await;
        if left <= SWITCH_POLL || group.is_decided_by_switches() {
            return;
        }
    }
}

// The pauses between the checks of a request that polls an in-flight limit.

/// The first pause.
const FIRST: Duration = Duration::from_millis(10);

/// The longest pause.
const LONGEST: Duration = Duration::from_millis(250);

/// The next pause: 1.5 times the one before it.
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// Returns the pause before the next check.
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 3 / 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Gate, ManualClock, Quota, Rate};
    use tokio::task::JoinHandle;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn gate(limiter: &Limiter) -> Gate {
        limiter.gate("api", Quota::token_bucket(1, Rate::per_second(1)))
    }

    fn decide(wait_queue: &WaitQueue, check: tidegate::Check) -> JoinHandle<GroupResult> {
        let wait_queue = wait_queue.clone();
        tokio::spawn(async move { wait_queue.decide(&mut CheckGroup::all([check].into())).await })
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn permits_and_queues_are_released_after_admission_or_cancellation() {
        let clock = ManualClock::new();
        let gate = gate(&Limiter::in_memory_with(clock.clone()));
        let wait_queue = WaitQueue::new(SECOND * 10, 20);
        let mut waiting: Vec<_> =
            (0..30).map(|at| decide(&wait_queue, gate.key(format!("{}", at % 3)))).collect();
        settle().await;
        assert_eq!(wait_queue.waiting.lock().size(), (20, 3));
        for cancelled in waiting.drain(10..) {
            cancelled.abort();
        }
        for _ in 0..12 {
            settle().await;
            clock.advance(SECOND);
        }
        for decided in waiting {
            let (decision, _) = decided.await.unwrap().unwrap();
            assert!(decision.is_some_and(|decision| decision.is_allowed()));
        }
        assert_eq!(wait_queue.waiting.lock().size(), (0, 0));
    }

    #[tokio::test]
    async fn check_in_flight_holds_no_permit() {
        // Accepts connections and never replies.
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", server.local_addr().unwrap());
        let limiter = Limiter::builder().url(&url).deadline(SECOND * 60).build().unwrap();
        let wait_queue = WaitQueue::new(SECOND * 60, 1);
        let checks: Vec<_> = (0..3).map(|_| decide(&wait_queue, gate(&limiter).key("a"))).collect();
        settle().await;
        assert!(checks.iter().all(|check| !check.is_finished()));
        assert_eq!(wait_queue.waiting.lock().size(), (0, 0));
        assert_eq!(wait_queue.delayed.lock().size(), (0, 0));
        checks.iter().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod backoff_tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_quarter_of_a_second() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next().as_micros()).collect();
        assert_eq!(pauses[..4], [10_000, 15_000, 22_500, 33_750]);
        assert_eq!(pauses[9..], [250_000; 3]);
    }
}

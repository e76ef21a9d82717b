//! The position of a request in a queue, which it leaves when dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tidegate::{AllDecision, Stopwatch};
use tokio::sync::oneshot;

use super::estimate::Estimate;
use super::key_queues::{KeyQueues, QueueName};
use crate::check_group::{CheckGroup, Wait};

/// Notifies a waiting request. It is notified at most once in each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The request is a head of its queue.
    Head,
    /// The request lost its permit to one of another key.
    Displaced,
}

/// [`KeyQueues`] that requests share.
#[derive(Clone)]
pub(super) struct SharedQueues(Arc<Mutex<KeyQueues<oneshot::Sender<Turn>>>>);

impl SharedQueues {
    pub(super) fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(KeyQueues::new(permits))))
    }

    /// The lock is never held across an await.
    pub(super) fn lock(&self) -> MutexGuard<'_, KeyQueues<oneshot::Sender<Turn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins a queue. Returns `None` if there is no permit, or if the request would wait longer than
    /// `max_wait`.
    pub(super) fn join(&self, queue: QueueName, cost: u64, max_wait: Duration) -> Option<Position> {
        let (signal, turn) = oneshot::channel();
        let mut queues = self.lock();
        if queues.get(&queue).is_some_and(|queue| queue.min_wait(cost) > max_wait) {
            return None;
        }
        let joined = queues.join(&queue, cost, signal)?;
        drop(queues);
        notify(joined.displaced, Turn::Displaced);
        let turn = (!joined.is_head).then_some(turn);
        Some(Position { queues: self.clone(), queue, ticket: joined.ticket, turn })
    }

    /// Reserves a permit for a request that may join. Returns `None` if there is none.
    pub(super) fn reserve(&self, queue: &QueueName) -> Option<ReservedPermit> {
        let is_reserved = self.lock().reserve(queue);
        is_reserved.then(|| ReservedPermit { queues: self.clone(), queue: queue.clone() })
    }
}

/// A permit that a check in flight may need. Dropping it releases the permit.
pub(super) struct ReservedPermit {
    queues: SharedQueues,
    queue: QueueName,
}

impl Drop for ReservedPermit {
    fn drop(&mut self) {
        self.queues.lock().release(&self.queue);
    }
}

/// The position of a request. Dropping it frees the permit and lets the next requests be heads.
pub(super) struct Position {
    queues: SharedQueues,
    queue: QueueName,
    ticket: u64,
    /// `None` for a head.
    turn: Option<oneshot::Receiver<Turn>>,
}

impl Position {
    pub(super) fn queue(&self) -> &QueueName {
        &self.queue
    }

    pub(super) fn is_head(&self) -> bool {
        self.turn.is_none()
    }

    /// Waits until the request is a head or has lost its permit. Returns `None` if `timeout` completes
    /// before.
    pub(super) async fn turn(&mut self, timeout: impl Future<Output = ()>) -> Option<Turn> {
        let Some(turn) = &mut self.turn else { return Some(Turn::Head) };
        let turn = match select(turn, std::pin::pin!(timeout)).await {
            Either::Left((turn, _)) => turn.unwrap_or(Turn::Displaced),
            Either::Right(_) => return None,
        };
        if turn == Turn::Head {
            self.turn = None;
        }
        Some(turn)
    }

    /// Records the denial of this request, a head, and moves it to the queue of the check that denied it. It
    /// remains a head only if no older request of this queue makes a check.
    pub(super) fn record_denial(&mut self, denial: &Arc<Denial>) {
        let (signal, turn) = oneshot::channel();
        let mut queues = self.queues.lock();
        let (is_head, next) = queues.back_off(&self.queue, self.ticket, &denial.queue, denial.cost, signal);
        queues.set_denial(&denial.queue, denial.clone());
        drop(queues);
        (self.queue, self.turn) = (denial.queue.clone(), (!is_head).then_some(turn));
        notify(next, Turn::Head);
    }

    /// Leaves the queue because the request, a head, is admitted. `has_more`: whether the queue's gate would
    /// admit another one of its cost.
    pub(super) fn leave_admitted(self, has_more: bool) {
        self.queues.lock().record_admission(&self.queue, self.ticket, has_more);
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        let next = self.queues.lock().leave(&self.queue, self.ticket);
        notify(next, Turn::Head);
    }
}

/// A request that is being dropped does not receive the signal. Its position then notifies the next request.
fn notify(signals: impl IntoIterator<Item = oneshot::Sender<Turn>>, turn: Turn) {
    for signal in signals {
        let _ = signal.send(turn);
    }
}

/// A denial of a request that may wait.
pub(super) struct Denial {
    decision: AllDecision,
    pub(super) wait: Wait,
    /// The queue for this request: that of the check with the longest wait.
    pub(super) queue: QueueName,
    pub(super) cost: u64,
    estimate: Option<Estimate>,
    /// The names and costs of all checks.
    checks: Vec<(QueueName, u64)>,
    /// Started before the check was sent, so that estimates are never too long.
    sent: Stopwatch,
}

impl Denial {
    pub(super) fn new(group: &CheckGroup, decision: AllDecision, sent: Stopwatch) -> Self {
        let at = group.binding_index(&decision);
        let (check, denial) = (&group.checks[at], &decision.each_alone()[at]);
        Self {
            wait: group.wait(&decision),
            queue: QueueName::of(check),
            cost: check.units(),
            estimate: check.quota().and_then(|quota| Estimate::new(quota, check.units(), denial)),
            checks: checks_of(group),
            decision,
            sent,
        }
    }

    pub(super) fn decision(&self) -> AllDecision {
        self.decision.clone()
    }

    /// Returns the denial of another request, with its times counted from now, if that request has the same
    /// checks.
    pub(super) fn decision_for(&self, group: &CheckGroup) -> Option<AllDecision> {
        let decision = || self.decision.clone().aged(self.sent.elapsed()).denied();
        (self.checks == checks_of(group)).then(decision)
    }

    /// Returns a lower bound of the time from now until a request of `cost` enters the service, if `ahead`
    /// units are admitted before it. `smallest_cost`: of all these requests.
    pub(super) fn min_wait(&self, ahead: u128, cost: u64, smallest_cost: u64) -> Duration {
        let estimate = self.estimate.as_ref();
        let wait = estimate.map_or(Duration::ZERO, |it| it.min_wait(ahead, cost, smallest_cost));
        wait.saturating_sub(self.sent.elapsed())
    }
}

fn checks_of(group: &CheckGroup) -> Vec<(QueueName, u64)> {
    group.checks.iter().map(|check| (QueueName::of(check), check.units())).collect()
}

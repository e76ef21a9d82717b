//! The wait queue: requests that wait for their turn.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tidegate::{AllDecision, Check, Error};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::check_group::{CheckGroup, Wait};

/// The shortest pause before a retry. The retry time of a denial can be zero, for example while another
/// process holds the units in a lease.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// A wait queue, bounded in time and number. Clones share it.
#[derive(Clone)]
pub(super) struct WaitQueue {
    max_wait: Duration,
    permits: Arc<Semaphore>,
    queues: Arc<KeyQueues>,
}

/// One queue per set of keys with waiting requests. Their number is bounded by the number of permits.
#[derive(Default)]
struct KeyQueues(Mutex<HashMap<Vec<u8>, KeyQueue>>);

struct KeyQueue {
    /// One permit. Its holder is the head of the queue and makes the checks. Tokio's semaphore grants it in
    /// FIFO order.
    head: Arc<Semaphore>,
    requests: usize,
}

/// A unit of the wait queue's capacity, held while a request waits.
pub(super) struct WaitPermit {
    _permit: OwnedSemaphorePermit,
}

/// The decision on a [`CheckGroup`] and the request's permit to wait. The decision is `None` if no check can
/// deny the request.
pub(super) type GroupResult = Result<(Option<AllDecision>, Option<WaitPermit>), Error>;

impl WaitQueue {
    pub(super) fn new(max_wait: Duration, max_waiting: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max_waiting.min(Semaphore::MAX_PERMITS)));
        Self { max_wait, permits, queues: Arc::default() }
    }

    /// Decides a request, after a wait if necessary. The caller keeps the returned permit until the
    /// decision's delay is over.
    ///
    /// The future is boxed so that it does not enlarge the types of the services around the layer.
    pub(super) fn decide<'a>(&'a self, group: &'a mut CheckGroup) -> BoxFuture<'a, GroupResult> {
        Box::pin(async {
            let (decision, permit) = self.decide_now(group).await?;
            Ok((Some(decision), permit))
        })
    }

    async fn decide_now(&self, group: &mut CheckGroup) -> Result<(AllDecision, Option<WaitPermit>), Error> {
        let limiter = group.checks[0].limiter();
        let stopwatch = limiter.stopwatch();
        let remaining = || self.max_wait.saturating_sub(stopwatch.elapsed());
        let name = queue_name(&group.checks);
        let mut permit = self.permit();
        let mut fresh_decision = None;
        // While other requests wait for the same keys, a check would overtake them.
        if !self.queues.has(&name) {
            // A request without a permit cannot wait for the delay of a leaky bucket either.
            let max_delay = if permit.is_some() { remaining() } else { Duration::ZERO };
            let decision = check_within(group, max_delay).await?;
            if decision.is_allowed() {
                return Ok((decision, permit));
            }
            permit = permit.or_else(|| self.permit());
            if permit.is_none() || is_too_long(&group.wait(&decision), remaining()) {
                return Ok((decision, None));
            }
            fresh_decision = Some(decision);
        }
        if permit.is_none() {
            return Ok((denied(group).await?, None));
        }
        let position = self.queues.join(name);
        let _head = match position.head.clone().try_acquire_owned() {
            Ok(head) => head,
            Err(_) => {
                // Waiting in the queue makes the decision stale.
                fresh_decision = None;
                match Self::until_head(&position, limiter.sleep(remaining())).await {
                    Some(head) => head,
                    None => return Ok((denied(group).await?, None)),
                }
            }
        };
        loop {
            let decision = match fresh_decision.take() {
                Some(decision) => decision,
                None => check_within(group, remaining()).await?,
            };
            if decision.is_allowed() {
                return Ok((decision, permit));
            }
            let wait = group.wait(&decision);
            if is_too_long(&wait, remaining()) {
                return Ok((decision, permit));
            }
            limiter.sleep(wait.until_retry.max(MIN_WAIT)).await;
        }
    }

    /// Waits until the request is the head of the queue. Returns `None` if `timeout` completes before that.
    async fn until_head(
        position: &QueuePosition,
        timeout: impl Future<Output = ()>,
    ) -> Option<OwnedSemaphorePermit> {
        let head = std::pin::pin!(position.head.clone().acquire_owned());
        match select(head, std::pin::pin!(timeout)).await {
            Either::Left((head, _)) => head.ok(),
            Either::Right(_) => None,
        }
    }

    fn permit(&self) -> Option<WaitPermit> {
        self.permits.clone().try_acquire_owned().ok().map(|permit| WaitPermit { _permit: permit })
    }
}

async fn check_within(group: &mut CheckGroup, max_delay: Duration) -> Result<AllDecision, Error> {
    group.set_max_delay(max_delay);
    group.decide().await
}

fn is_too_long(wait: &Wait, remaining: Duration) -> bool {
    remaining.is_zero() || wait.until_entry > remaining
}

/// Returns a denial with the current state of the keys, for a request that cannot wait (any longer) behind
/// others.
async fn denied(group: &CheckGroup) -> Result<AllDecision, Error> {
    let decision = group.peek().await?;
    Ok(decision.denied())
}

/// Returns the name of the queue for these keys. Requests with equal names wait in one queue.
fn queue_name(checks: &[Check]) -> Vec<u8> {
    let mut name = Vec::new();
    for check in checks {
        name.extend_from_slice(check.gate().unwrap_or_default().as_bytes());
        name.push(0);
        name.extend_from_slice(&(check.key().len() as u64).to_le_bytes());
        name.extend_from_slice(check.key());
    }
    name
}

impl KeyQueues {
    fn has(&self, name: &[u8]) -> bool {
        self.lock().contains_key(name)
    }

    fn join(self: &Arc<Self>, name: Vec<u8>) -> QueuePosition {
        let mut queues = self.lock();
        let queue = queues
            .entry(name.clone())
            .or_insert_with(|| KeyQueue { head: Arc::new(Semaphore::new(1)), requests: 0 });
        queue.requests += 1;
        QueuePosition { head: queue.head.clone(), name, queues: self.clone() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, KeyQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The position of a request in its queue. Dropping it leaves the queue; the last one removes the queue.
struct QueuePosition {
    head: Arc<Semaphore>,
    name: Vec<u8>,
    queues: Arc<KeyQueues>,
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        if let Entry::Occupied(mut queue) = self.queues.lock().entry(std::mem::take(&mut self.name)) {
            queue.get_mut().requests -= 1;
            if queue.get().requests == 0 {
                queue.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{Limiter, ManualClock, Quota, Rate};

    #[tokio::test]
    async fn permits_and_queues_are_released_after_admission_or_cancellation() {
        let clock = ManualClock::new();
        let gate =
            Limiter::in_memory_with(clock.clone()).gate("api", Quota::token_bucket(1, Rate::per_second(1)));
        let wait_queue = WaitQueue::new(Duration::from_secs(10), 20);
        let mut waiting: Vec<_> = (0..30)
            .map(|at| {
                let (wait_queue, check) = (wait_queue.clone(), gate.key(format!("{}", at % 3)));
                tokio::spawn(async move {
                    let mut group = CheckGroup::all(vec![check]);
                    wait_queue.decide(&mut group).await.map(|(decision, _)| decision)
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!((wait_queue.permits.available_permits(), wait_queue.queues.lock().len()), (0, 3));
        for cancelled in waiting.drain(10..) {
            cancelled.abort();
        }
        for _ in 0..12 {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(1));
        }
        for decided in waiting {
            assert!(decided.await.unwrap().unwrap().is_some_and(|decision| decision.is_allowed()));
        }
        assert_eq!((wait_queue.permits.available_permits(), wait_queue.queues.lock().len()), (20, 0));
    }
}

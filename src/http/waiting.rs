//! The wait queue: requests that wait for their turn.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::asking::{Question, Wait};
use super::deciding::Answered;
use super::settings::BoxFuture;
use crate::ask::Ask;
use crate::decision::AllDecision;
use crate::error::Error;

/// The shortest pause before a retry. A denial can carry no wait, for example while another process holds the units in a
/// lease.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// A wait queue, bounded in time and number. Clones share it.
#[derive(Clone)]
pub(super) struct Room {
    max_wait: Duration,
    places: Arc<Semaphore>,
    lines: Arc<Lines>,
}

/// One queue per set of keys with waiting requests. At most as many as there are permits.
#[derive(Default)]
struct Lines(Mutex<HashMap<Vec<u8>, Line>>);

struct Line {
    /// One permit: its holder is first in the queue, and checks. Tokio's semaphore passes it on in FIFO
    /// order.
    first: Arc<Semaphore>,
    people: usize,
}

/// A permit to wait, held while a request waits.
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
}

impl Room {
    pub(super) fn new(max_wait: Duration, max_waiting: usize) -> Self {
        let places = Arc::new(Semaphore::new(max_waiting.min(Semaphore::MAX_PERMITS)));
        Self { max_wait, places, lines: Arc::default() }
    }

    /// Decides a request, after a wait if necessary. The caller keeps the returned place until the decision's delay is
    /// over.
    ///
    /// The future is boxed so that it does not enlarge the types of the services around the layer.
    pub(super) fn decide<'a>(&'a self, question: &'a mut Question) -> BoxFuture<'a, Answered> {
        Box::pin(async {
            let (decision, place) = self.decide_now(question).await?;
            Ok((Some(decision), place))
        })
    }

    async fn decide_now(&self, question: &mut Question) -> Result<(AllDecision, Option<Place>), Error> {
        let core = question.asks[0].gate.core.clone();
        let waited = core.stopwatch();
        let left = || self.max_wait.saturating_sub(waited());
        let name = name(&question.asks);
        let mut place = self.place();
        let mut known = None;
        // If other requests wait for the same keys, a check now would overtake them.
        if !self.lines.has(&name) {
            // A request without a place cannot wait for the delay of a leaky bucket either.
            let most = if place.is_some() { left() } else { Duration::ZERO };
            let decision = check_within(question, most).await?;
            if decision.is_allowed() {
                return Ok((decision, place));
            }
            place = place.or_else(|| self.place());
            if place.is_none() || is_too_long(&question.wait(&decision), left()) {
                return Ok((decision, None));
            }
            known = Some(decision);
        }
        if place.is_none() {
            return Ok((denied(question).await?, None));
        }
        let line = self.lines.join(name);
        let _first = match line.first.clone().try_acquire_owned() {
            Ok(first) => first,
            Err(_) => {
                // The decision is outdated once the request has waited in the queue.
                known = None;
                match Self::until_first(&line, core.sleep(left())).await {
                    Some(first) => first,
                    None => return Ok((denied(question).await?, None)),
                }
            }
        };
        loop {
            let decision = match known.take() {
                Some(decision) => decision,
                None => check_within(question, left()).await?,
            };
            if decision.is_allowed() {
                return Ok((decision, place));
            }
            let wait = question.wait(&decision);
            if is_too_long(&wait, left()) {
                return Ok((decision, place));
            }
            core.sleep(wait.until_retry.max(MIN_WAIT)).await;
        }
    }

    /// Waits until the request is first in the queue. Returns `None` if `too_long` ends first.
    async fn until_first(line: &InLine, too_long: impl Future<Output = ()>) -> Option<OwnedSemaphorePermit> {
        let first = std::pin::pin!(line.first.clone().acquire_owned());
        match select(first, std::pin::pin!(too_long)).await {
            Either::Left((first, _)) => first.ok(),
            Either::Right(_) => None,
        }
    }

    fn place(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok().map(|place| Place { _place: place })
    }
}

async fn check_within(question: &mut Question, left: Duration) -> Result<AllDecision, Error> {
    question.asks.iter_mut().for_each(|ask| ask.max_delay = Some(left));
    question.decide().await
}

fn is_too_long(wait: &Wait, left: Duration) -> bool {
    left.is_zero() || wait.until_entry > left
}

/// Returns a denial for a request that cannot wait (any longer) behind others, with the current state of its keys.
async fn denied(question: &Question) -> Result<AllDecision, Error> {
    let decision = question.peek().await?;
    Ok(AllDecision { allowed: false, ..decision })
}

/// Returns a name for the keys of a request. Requests with equal names wait in one queue.
fn name(asks: &[Ask]) -> Vec<u8> {
    let mut name = Vec::new();
    for ask in asks {
        let gate = ask.gate.name().unwrap_or_default();
        name.extend_from_slice(gate.as_bytes());
        name.push(0);
        name.extend_from_slice(&(ask.key.len() as u64).to_le_bytes());
        name.extend_from_slice(&ask.key);
    }
    name
}

impl Lines {
    fn has(&self, name: &[u8]) -> bool {
        self.lock().contains_key(name)
    }

    fn join(self: &Arc<Self>, name: Vec<u8>) -> InLine {
        let mut lines = self.lock();
        let line = lines
            .entry(name.clone())
            .or_insert_with(|| Line { first: Arc::new(Semaphore::new(1)), people: 0 });
        line.people += 1;
        InLine { first: line.first.clone(), name, lines: self.clone() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in a queue. Leaves the queue when dropped; the last one removes the queue.
struct InLine {
    first: Arc<Semaphore>,
    name: Vec<u8>,
    lines: Arc<Lines>,
}

impl Drop for InLine {
    fn drop(&mut self) {
        if let Entry::Occupied(mut line) = self.lines.lock().entry(std::mem::take(&mut self.name)) {
            line.get_mut().people -= 1;
            if line.get().people == 0 {
                line.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::limiter::Limiter;
    use crate::quota::{Quota, Rate};

    #[tokio::test]
    async fn nothing_is_left_of_those_who_waited_or_went_away() {
        let clock = ManualClock::new();
        let gate =
            Limiter::in_memory_with(clock.clone()).gate("api", Quota::token_bucket(1, Rate::per_second(1)));
        let room = Room::new(Duration::from_secs(10), 20);
        let mut waiting: Vec<_> = (0..30)
            .map(|at| {
                let (room, ask) = (room.clone(), gate.ask(format!("{}", at % 3)));
                tokio::spawn(async move {
                    let mut question = Question::all(vec![ask]);
                    room.decide(&mut question).await.map(|(decision, _)| decision)
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!((room.places.available_permits(), room.lines.lock().len()), (0, 3));
        for gone in waiting.drain(10..) {
            gone.abort();
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
        assert_eq!((room.places.available_permits(), room.lines.lock().len()), (20, 0));
    }
}

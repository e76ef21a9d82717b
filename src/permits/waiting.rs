//! An acquire that waits for its answer, as its caller holds it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::driver;
use super::inner::PermitsInner;
use super::permit::HeldUnits;
use super::registry::KeyEntry;
use super::terms::{Answer, Terms, TimeLimits, Waiter};
use crate::error::{Error, QUEUE_ROOM};
use crate::store::Target;

/// Dropping it leaves the queue; units that were admitted meanwhile are released.
pub(crate) struct Waiting {
    inner: Arc<PermitsInner>,
    key: Arc<KeyEntry>,
    terms: Terms,
    id: u64,
    answer: oneshot::Receiver<Answer>,
    is_answered: bool,
}

impl Waiting {
    /// Enqueues an acquire.
    pub(super) fn new(
        inner: &Arc<PermitsInner>,
        target: &Target,
        terms: Terms,
        limits: TimeLimits,
    ) -> Result<Self, Error> {
        let (sender, answer) = oneshot::channel();
        let now_us = inner.clock.local_us();
        let entered = inner.registry.change(target, inner.holder(target.hash_tag), |state| {
            if state.is_full() {
                return None;
            }
            let id = state.new_id();
            state.enqueue(Waiter { id, terms: terms.clone(), limits, answer: sender }, now_us);
            Some(id)
        });
        let Some((key, Some(id))) = entered else {
            return Err(Error::timeout(QUEUE_ROOM, inner.deadline));
        };
        driver::wake(inner, &key);
        inner.notify(|observer| observer.permits_waiting(&terms.gate.name, 1));
        Ok(Self { inner: inner.clone(), key, terms, id, answer, is_answered: false })
    }

    /// Waits for the answer. May be called again if the future was dropped, until it returns.
    pub(crate) async fn answer(&mut self) -> (Answer, Option<HeldUnits>) {
        let answer = (&mut self.answer).await.unwrap_or_else(|_| Answer::Failed(Error::runtime_ended()));
        self.is_answered = true;
        // The time of what the failure policy admitted says nothing about the limit.
        let adaptive = self.terms.adaptive.as_ref().filter(|_| matches!(answer, Answer::Decided { .. }));
        let gate = &self.terms.gate;
        let held = answer.grant().map(|grant| {
            let operation = adaptive.map(|adaptive| adaptive.key.begin(grant.units));
            HeldUnits::new(&self.inner, &self.key, gate, grant, operation)
        });
        (answer, held)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.inner.notify(|observer| observer.permits_waiting(&self.terms.gate.name, -1));
        if self.is_answered {
            return;
        }
        driver::change(&self.inner, &self.key, |state, now_us| {
            // Answers are sent while the state is locked, so none arrives from here on.
            match self.answer.try_recv() {
                Ok(answer) => {
                    if let Some(grant) = answer.grant() {
                        state.release(&grant, now_us, None);
                    }
                }
                Err(_) => state.leave(self.id, now_us),
            }
        });
    }
}

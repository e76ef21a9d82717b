//! Waiting until a check is admitted.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::Check;
use crate::decision::Decision;
use crate::error::Error;
use crate::local::fallback::ReconcileStamp;
use crate::pipeline::Pipeline;
use crate::pipeline::request::Request;

impl Check {
    /// Waits until the check is admitted, for at most `max_wait`. Returns a denial at once if the wait would be
    /// longer.
    ///
    /// With a leaky bucket, enters its queue and returns when the turn of the check has come.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before the turn has come refunds the units in the queue.
    pub async fn until_allowed(self, max_wait: Duration) -> Result<Decision, Error> {
        self.validate()?;
        let Self { pipeline, request } = &self;
        if request.charges_used() {
            return Err(Error::config(
                "a gate that charges units used cannot wait: they were used already, and each attempt would charge them",
            ));
        }
        let waited = pipeline.stopwatch();
        loop {
            let left = max_wait.saturating_sub(waited.elapsed());
            let request = &pipeline.follow(request.borrowed()).await;
            let gate = pipeline.effective(&request.gate, &request.key);
            let max_delay = request.max_delay.map_or(left, |own| own.min(left));
            let request =
                Request { gate: Cow::Borrowed(&*gate), max_delay: Some(max_delay), ..request.borrowed() };
            let decision = pipeline.check(&request).await?;
            if decision.is_allowed() {
                if decision.delay() > Duration::ZERO {
                    let slot = QueueSlot::new(pipeline, request, &decision);
                    pipeline.sleep(decision.delay()).await;
                    slot.reached();
                }
                return Ok(decision);
            }
            let until_retry = decision.retry_after();
            // At a leaky bucket, the caller waits to enter the queue and then for its turn: together at
            // most the time in which the queue drains.
            let until_allowed = match gate.info()?.quota.has_queue() {
                true => until_retry.max(decision.reset_after()),
                false => until_retry,
            };
            if until_allowed > left || left.is_zero() {
                return Ok(decision);
            }
            pipeline.sleep(until_retry).await;
        }
    }
}

/// Units in a leaky bucket's queue, refunded when the caller drops its future.
struct QueueSlot<'a> {
    pipeline: &'a Arc<Pipeline>,
    waiting: Option<(Request<'a>, Decision, Option<ReconcileStamp>)>,
}

impl<'a> QueueSlot<'a> {
    fn new(pipeline: &'a Arc<Pipeline>, request: Request<'a>, decision: &Decision) -> Self {
        let stamp = pipeline.stamp_of_charge(&request, decision);
        Self { pipeline, waiting: Some((request, decision.clone(), stamp)) }
    }

    fn reached(mut self) {
        self.waiting = None;
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        // Drop cannot await, so a background job refunds the units.
        if let Some((request, decision, stamp)) = self.waiting.take() {
            let (pipeline, request) = (self.pipeline.clone(), request.into_owned());
            self.pipeline.spawn(async move {
                drop(pipeline.settle_charge(&request, &decision, stamp.as_ref(), 0).await);
            });
        }
    }
}

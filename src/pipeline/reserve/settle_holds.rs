//! Settling holds. A settle takes effect once however often it is sent, so it is repeated until Redis answers:
//! after the caller's deadline in the background.

use super::settle_queue::SettleCall;
use crate::connection::Deadline;
use crate::error::Error;
use crate::observe::observer::Event;
use crate::pipeline::Pipeline;
use crate::quota::settlement::Settlement;

impl Pipeline {
    /// Settles the items of one hold. Returns one result per item.
    ///
    /// If the caller drops the future, or Redis does not answer by the deadline, the call is queued.
    pub(crate) async fn settle(
        &self,
        call: SettleCall,
        deadline: Deadline,
    ) -> Vec<Result<Settlement, Error>> {
        if let Err(error) = self.ensure_open() {
            return call.items.iter().map(|_| Err(error.clone())).collect();
        }
        self.ensure_background_jobs();
        let (hash_tag, mut unanswered) = (call.hash_tag(), Unanswered { pipeline: self, call: Some(call) });
        let settled = match (self.ensure_available(hash_tag), &unanswered.call) {
            (Ok(()), Some(call)) => self.store.settle(&call.hold, &call.items, deadline).await,
            (Err(error), _) => Err(error),
            (Ok(()), None) => Ok(Vec::new()),
        };
        self.record_result(hash_tag, &settled, deadline.after);
        let Some(call) = unanswered.answered() else { return Vec::new() };
        let results = settled.unwrap_or_else(|error| vec![Err(error); call.items.len()]);
        let results = self.queue_unanswered(&call, results);
        for (item, result) in call.items.iter().zip(&results) {
            let gate = &item.target.gate;
            match result {
                Ok(settlement) => self.notify_settled(&gate.name, *settlement),
                Err(error) => self.notify_failed(gate, || error.clone()),
            }
        }
        results
    }

    /// Queues the items that Redis did not answer, or rejected for a reason that passes.
    fn queue_unanswered(
        &self,
        call: &SettleCall,
        results: Vec<Result<Settlement, Error>>,
    ) -> Vec<Result<Settlement, Error>> {
        let is_queued =
            |result: &Result<Settlement, Error>| result.as_ref().is_err_and(Error::is_unavailable);
        let queue = self.settle_queue.as_ref().filter(|_| results.iter().any(is_queued));
        let Some(queue) = queue else { return results };
        let unanswered = call.items.iter().zip(&results).filter(|(_, result)| is_queued(result));
        let items = unanswered.map(|(item, _)| item.clone()).collect();
        let queued = queue.push(SettleCall { hold: call.hold.clone(), items });
        let queued = |result| match is_queued(&result) {
            true => queued.clone().map(|()| Settlement::Queued),
            false => result,
        };
        results.into_iter().map(queued).collect()
    }

    fn notify_settled(&self, gate: &str, settlement: Settlement) {
        self.events.notify(&Event::Settled { gate, settlement });
    }

    /// Removes the cached denials of keys whose units may have been returned.
    fn forget_denials(&self, call: &SettleCall) {
        if let Some(deny_cache) = &self.deny_cache {
            call.items.iter().for_each(|item| deny_cache.forget(&item.target));
        }
    }
}

/// A call that was not answered. Dropped with the caller's future, it is queued.
struct Unanswered<'a> {
    pipeline: &'a Pipeline,
    call: Option<SettleCall>,
}

impl Unanswered<'_> {
    fn answered(&mut self) -> Option<SettleCall> {
        let call = self.call.take()?;
        self.pipeline.forget_denials(&call);
        Some(call)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        self.pipeline.forget_denials(&call);
        if let Some(queue) = &self.pipeline.settle_queue
            && let Err(error) = queue.push(call.clone())
        {
            // The hold ends after its ttl.
            call.items
                .iter()
                .for_each(|item| self.pipeline.notify_failed(&item.target.gate, || error.clone()));
        }
    }
}

//! Writes to a key's state other than checks: refunds, penalties, blocks, resets. They are sent directly,
//! through the breaker.

use std::sync::Arc;

use super::components::Pipeline;
use super::request::{GateSpec, Request, check_is_charged};
use crate::connection::Deadline;
use crate::error::Error;
use crate::local::deny_cache::DenyCache;
use crate::store::{Target, Write, Written};

impl Pipeline {
    /// Writes to a state with the deadline of operators, also while the circuit is open. Then forgets its cached denials.
    #[cfg(feature = "admin")]
    pub(crate) async fn write_for_operator(&self, state: &Target, write: Write) -> Result<(), Error> {
        self.ensure_open()?;
        let _forget = self.forget_on_drop(state);
        self.store.write(state, write, self.operator_deadline()).await?;
        self.note_write(state, write);
        Ok(())
    }

    /// Writes to the state that decides the key.
    pub(crate) async fn write_effective(
        &self,
        gate: &Arc<GateSpec>,
        key: &[u8],
        write: Write,
    ) -> Result<(), Error> {
        let original = self.follow(Request::new(gate, key, 0)).await;
        let effective = self.effective(gate, key);
        let request = Request { deadline: original.deadline, ..Request::new(&effective, key, 0) };
        self.write(&request, write).await
    }

    /// Also writes to the state of the gate's own quota, which decides again once an override ends.
    pub(crate) async fn write_all_states(
        &self,
        gate: &Arc<GateSpec>,
        key: &[u8],
        write: Write,
    ) -> Result<(), Error> {
        let later = self.follow(Request::new(gate, key, 0)).await;
        let effective = self.effective(gate, key);
        let now = Request { deadline: later.deadline, ..Request::new(&effective, key, 0) };
        self.write(&now, write).await?;
        match now.target()? == later.target()? {
            true => Ok(()),
            false => self.write(&later, write).await,
        }
    }

    /// Writes to the state of this request's quota.
    pub(crate) async fn write(&self, request: &Request<'_>, write: Write) -> Result<(), Error> {
        let target = request.target()?;
        if matches!(write, Write::Refund { .. } | Write::Penalize { .. }) {
            check_is_charged(&target.gate.quota).map_err(|error| request.with_context(error))?;
        }
        self.write_to(&target, &request.key, write, self.deadline_of(request.deadline)).await
    }

    /// Writes to the state of this target; `key` is for errors.
    pub(crate) async fn write_to(
        &self,
        target: &Target,
        key: &[u8],
        write: Write,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.ensure_open()?;
        let record = |deny_cache: &DenyCache, written: &Written| match write {
            Write::Penalize { units } => {
                deny_cache.record_charge(target, units, written);
                true
            }
            _ => false,
        };
        let written =
            self.send_write(target, deadline, self.store.write(target, write, deadline), record).await;
        written.map(|_| self.note_write(target, write)).map_err(|error| {
            let error = error.with_context(target.gate.name, key);
            self.notify_failed(&target.gate, || error.clone());
            error
        })
    }

    /// Sends a write to the state of this target through the breaker. Then the key's cached denials are forgotten, unless
    /// `record` changes them as the write has changed the state.
    pub(super) async fn send_write<T>(
        &self,
        target: &Target,
        deadline: Deadline,
        write: impl Future<Output = Result<T, Error>>,
        record: impl FnOnce(&DenyCache, &T) -> bool,
    ) -> Result<T, Error> {
        let mut forget = self.forget_on_drop(target);
        self.ensure_background_jobs();
        let written = match self.ensure_available(target.hash_tag) {
            Ok(()) => write.await,
            Err(error) => Err(error),
        };
        if let (Ok(written), Some(deny_cache)) = (&written, forget.0)
            && record(deny_cache, written)
        {
            forget.0 = None;
        }
        self.record_result(target.hash_tag, &written, deadline.after);
        written
    }

    fn note_write(&self, target: &Target, write: Write) {
        if let Some(fallback) = &self.fallback {
            fallback.note_write(target, write);
        }
    }

    /// Returns a guard that removes the key's cached denials, also if the caller drops its future.
    pub(crate) fn forget_on_drop<'a>(&'a self, target: &'a Target) -> ForgetOnDrop<'a> {
        ForgetOnDrop(self.deny_cache.as_ref(), target)
    }
}

pub(crate) struct ForgetOnDrop<'a>(Option<&'a DenyCache>, &'a Target);

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(deny_cache) = self.0 {
            deny_cache.forget(self.1);
        }
    }
}

//! Writes to a key's state other than checks: refunds, penalties, blocks, resets. They are sent directly,
//! through the breaker.

use super::parts::Pipeline;
use crate::connection::Deadline;
use crate::deny_cache::DenyCache;
use crate::error::Error;
use crate::request::{GateSpec, Request, check_is_charged};
use crate::store::{Target, Write};

impl Pipeline {
    /// Writes to the state that decides the key.
    pub(crate) async fn write_effective(
        &self,
        gate: &GateSpec,
        key: &[u8],
        write: Write,
    ) -> Result<(), Error> {
        self.write(&Request::new(&self.effective(gate, key), key, 0), write).await
    }

    /// Also writes to the state of the gate's own quota, which decides again once an override ends.
    pub(crate) async fn write_all_states(
        &self,
        gate: &GateSpec,
        key: &[u8],
        write: Write,
    ) -> Result<(), Error> {
        let effective = self.effective(gate, key);
        let (now, later) = (Request::new(&effective, key, 0), Request::new(gate, key, 0));
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
        let written = self.send_write(target, deadline, self.store.write(target, write, deadline)).await;
        written.map(drop).map_err(|error| {
            let error = error.with_context(target.gate.name, key);
            self.notify_failed(&target.gate, || error.clone());
            error
        })
    }

    /// Sends a write to the state of this target through the breaker.
    pub(super) async fn send_write<T>(
        &self,
        target: &Target,
        deadline: Deadline,
        write: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let _forget = self.forget_on_drop(target);
        self.ensure_background_jobs();
        let written = match self.ensure_available(target.hash_tag) {
            Ok(()) => write.await,
            Err(error) => Err(error),
        };
        self.record_result(target.hash_tag, &written, deadline.after);
        written
    }

    /// Returns a guard that removes the key's cached denials, also if the caller drops its future.
    pub(super) fn forget_on_drop<'a>(&'a self, target: &'a Target) -> impl Drop + 'a {
        ForgetOnDrop(self.deny_cache.as_ref(), target)
    }
}

struct ForgetOnDrop<'a>(Option<&'a DenyCache>, &'a Target);

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(deny_cache) = self.0 {
            deny_cache.forget(self.1);
        }
    }
}

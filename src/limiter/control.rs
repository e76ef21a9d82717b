//! Operators' overrides for the whole fleet at once, without a deploy.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::key::as_key::AsKey;
use crate::local::overrides::{Override, Switch};
use crate::pipeline::Pipeline;
use crate::quota::Quota;

/// Opens, closes or shadows a gate, and gives a single key another quota, for all processes of the namespace.
/// Returned by [`Limiter::control`](crate::Limiter::control).
///
/// Redis keeps at most 4,096 overrides, in one hash, `tidegate:1:overrides`. If other programs have written more
/// to it, or more than 1,024 bytes for one, processes leave them out and warn. Each process reads it twice a
/// second, in a call of its own, and decides by the overrides it read last. So every process applies an
/// override within a second, and no check takes longer for it. The process that sets an override reads it at
/// once; if that read fails, its next read applies the override. A process that cannot reach Redis keeps the
/// overrides it knows. A process that has just started decides without overrides until its first read. A process
/// without checks for ten seconds does not read; its next check waits for a reading, within its deadline.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use std::time::Duration;
/// use tidegate::{Limiter, Quota, Rate, Switch};
///
/// let limiter = Limiter::in_memory();
/// let api = limiter.gate("api", Quota::token_bucket(1, Rate::per_minute(1)));
///
/// let ten_a_minute = Quota::token_bucket(10, Rate::per_minute(10));
/// limiter.control().set_override("api", "tenant:7", ten_a_minute, Duration::from_secs(86_400)).await?;
/// assert_eq!(api.check("tenant:7").await?.remaining(), 9);
/// assert_eq!(api.check("tenant:8").await?.remaining(), 0);
///
/// limiter.control().switch("api", Switch::Open, None).await?;
/// assert!(api.check("tenant:8").await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Control(Arc<Pipeline>);

impl Control {
    pub(crate) fn new(pipeline: &Arc<Pipeline>) -> Self {
        Self(pipeline.clone())
    }

    /// Switches the gate of this name for all its keys, until the switch is removed or, with `lasts`, for
    /// that time (at most ten years). Replaces a previous switch. The [`source`](crate::Decision::source) of
    /// its decisions is `switch`.
    ///
    /// Applies to gates of this name in all processes, also with other quotas or algorithms. No such gate
    /// needs to exist yet.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the name is invalid, or if the maximum number of overrides is reached;
    /// [`Error::is_unavailable`] if Redis did not accept the switch. The call is retried if its arrival is
    /// unknown.
    pub async fn switch(&self, gate: &str, switch: Switch, lasts: Option<Duration>) -> Result<(), Error> {
        self.0.overrides_for(gate)?.set_switch(gate, Some(switch), lasts).await
    }

    /// Removes the switch of this gate. Succeeds if there is none.
    ///
    /// # Errors
    ///
    /// As [`switch`](Self::switch), but sent at most once.
    pub async fn end_switch(&self, gate: &str) -> Result<(), Error> {
        self.0.overrides_for(gate)?.set_switch(gate, None, None).await
    }

    /// Returns the switch of a gate, by the overrides that this process has read last. Does not call Redis.
    #[must_use]
    pub fn current_switch(&self, gate: &str) -> Option<Switch> {
        self.0.switch(gate)
    }

    /// Decides this key of the gate by another quota for `lasts` (at most ten years). With the same algorithm
    /// and window the key keeps its usage, as when any quota's numbers change. Otherwise it starts unused,
    /// and returns to its old usage when the override ends.
    ///
    /// Meanwhile, a refund or penalty changes the active usage; a block, an unblock and a reset change both.
    /// Units of the key that a process has [leased](crate::Lease) are no longer spent.
    ///
    /// # Errors
    ///
    /// As [`switch`](Self::switch).
    pub async fn set_override(
        &self,
        gate: &str,
        key: impl AsKey,
        quota: Quota,
        lasts: Duration,
    ) -> Result<(), Error> {
        let key = self.0.encoded(&key.as_key());
        self.0.overrides_for(gate)?.set_override(gate, &key, Some(quota), Some(lasts)).await
    }

    /// Restores the gate's own quota for this key.
    ///
    /// # Errors
    ///
    /// As [`end_switch`](Self::end_switch).
    pub async fn end_override(&self, gate: &str, key: impl AsKey) -> Result<(), Error> {
        let key = self.0.encoded(&key.as_key());
        self.0.overrides_for(gate)?.set_override(gate, &key, None, None).await
    }

    /// Reads the active overrides from Redis, sorted by gate and key. Skips overrides that another version of
    /// tidegate has written and this one does not understand.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer.
    pub async fn overrides(&self) -> Result<Vec<Override>, Error> {
        self.0.all_overrides().await
    }
}

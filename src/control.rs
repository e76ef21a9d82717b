//! What operators set for the whole fleet at once, without a deploy.

use std::sync::Arc;
use std::time::Duration;

use crate::as_key::AsKey;
use crate::error::Error;
use crate::limiter::Core;
use crate::orders::{Order, Switch};
use crate::quota::Quota;

/// Opens, closes or watches a gate, and gives a single key another quota, for all
/// processes of the namespace: from [`Limiter::control`](crate::Limiter::control).
///
/// Redis keeps at most 4,096 orders, in one hash, `tidegate:1:orders`. Each process reads it twice a second, in a call of
/// its own, and decides by the orders it read last. So every process sees an order within a second, and no check takes
/// longer for it. The process that gives an order reads it at once; if that read fails, it sees the order with its next
/// one. A process that cannot reach Redis keeps the orders it knows. A process that has just started decides without
/// orders until its first read.
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
pub struct Control(Arc<Core>);

impl Control {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self(core.clone())
    }

    /// Switches the gate of this name for all its keys, until it is taken back or, with
    /// `lasts`, for so long (at most ten years). The order before it is forgotten. Whatever it
    /// decides, [`source`](crate::Decision::source) says `switch`.
    ///
    /// It holds for gates of this name in all processes, also those whose quota or
    /// algorithm differs, and needs none of them to be there.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if no gate can have that name, or if there are as many orders as there
    /// can be; [`Error::is_unavailable`] if Redis did not take it. It is sent again where it is not known to have arrived.
    pub async fn switch(&self, gate: &str, switch: Switch, lasts: Option<Duration>) -> Result<(), Error> {
        self.0.orders_for(gate)?.set_switch(gate, Some(switch), lasts).await
    }

    /// Takes the switch of this gate back; none is fine too.
    ///
    /// # Errors
    ///
    /// As [`switch`](Self::switch), but it is sent once.
    pub async fn end_switch(&self, gate: &str) -> Result<(), Error> {
        self.0.orders_for(gate)?.set_switch(gate, None, None).await
    }

    /// Decides this key of the gate by another quota for so long (at most ten years). With the
    /// same algorithm and window its counts go on, as where any quota's numbers change; with
    /// others it begins untouched, and goes back to its old counts in the end.
    ///
    /// While it lasts, a refund or penalty goes to the counts in force, a block, an unblock and a reset to both. A
    /// [lease](crate::Lease) that a process has of the key is spent no further.
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
        self.0.orders_for(gate)?.set_override(gate, &key, Some(quota), Some(lasts)).await
    }

    /// Gives this key the gate's own quota again.
    ///
    /// # Errors
    ///
    /// As [`end_switch`](Self::end_switch).
    pub async fn end_override(&self, gate: &str, key: impl AsKey) -> Result<(), Error> {
        let key = self.0.encoded(&key.as_key());
        self.0.orders_for(gate)?.set_override(gate, &key, None, None).await
    }

    /// All that are in force, read from Redis now, by their gates and keys. Those that another version of tidegate
    /// has written, and this one does not understand, are left out.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not say.
    pub async fn orders(&self) -> Result<Vec<Order>, Error> {
        self.0.all_orders().await
    }
}

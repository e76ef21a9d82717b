//! Limits that several regions share.

use std::sync::Arc;

use crate::error::Error;
use crate::limiter::Limiter;
use crate::limiter::gate::Gate;
use crate::regions::Mode;
use crate::regions::replicator::Status;
use crate::runtime::sharded_arc::ShardedArc;

/// # Several regions
impl Gate {
    /// Makes this a replicated gate: its limit is that of all regions together. Each check is decided by the Redis of this
    /// region, by the charges that it knows; those of other regions arrive in the background. The
    /// [mode](Mode) says in which direction the regions err until then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::regions::Mode;
    /// use tidegate::{Limiter, Quota};
    ///
    /// # fn main() -> Result<(), tidegate::Error> {
    /// let limiter = Limiter::builder()
    ///     .url("redis://127.0.0.1:6379")
    ///     .region("eu")
    ///     .peer("us", "redis://127.0.0.1:6380")
    ///     .build()?;
    /// let per_minute = Quota::fixed_window(1_000, Duration::from_secs(60)).aligned_to_clock();
    /// let search = limiter.gate("search", per_minute).replicated(Mode::gossip());
    /// # Ok(()) }
    /// ```
    ///
    /// Refunds, penalties, blocks and resets reach the other regions too. The state is another one than that of a gate of this
    /// name that is not replicated: a change between the two begins with unused limits.
    ///
    /// While Redis does not answer, each of I instances in each of R regions decides within 1/(R·I) of the limit. An
    /// operator's override acts in its region only. A limiter in memory, or a stub, is one region alone.
    ///
    /// Every check is an error ([`Error::is_config`](crate::Error::is_config)) if the limiter has no
    /// [peers](crate::Builder::peer), or if the gate has one of these: an in-flight limit, a calendar window, a window that
    /// begins with its first charge, [`count_denied`](crate::Quota::count_denied), [`holds`](Self::holds), a
    /// [ban](Self::ban), or [`charge_used`](Self::charge_used). So is a check together with gates that are not replicated
    /// ([`Limiter::check_all`]). Call this before [`leased`](Self::leased): a lease is one charge, which all regions hear of.
    #[must_use]
    pub fn replicated(mut self, mode: Mode) -> Self {
        let info = match self.spec.leases {
            None => self.info().and_then(|info| self.pipeline.replicated_info(info, mode)),
            Some(_) => {
                Err(Error::config("its leases would be of one region: call `replicated` before `leased`"))
            }
        };
        self.spec_mut().info = info.map(|info| Arc::new(ShardedArc::new(info)));
        self.with_checked_settings()
    }
}

/// # Several regions
impl Limiter {
    /// Returns the state of the replication, as this process knows it: of each peer when it was heard of, and how far the
    /// charges that arrive are behind. `None` without [peers](crate::Builder::peer).
    #[must_use]
    pub fn regions(&self) -> Option<Status> {
        self.pipeline.replication_status()
    }
}

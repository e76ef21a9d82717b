//! Taking as many units as are available.

use std::borrow::Borrow;

use crate::decision::{AllDecision, Grant};
use crate::error::Error;
use crate::key::as_key::AsKey;
use crate::limiter::Limiter;
use crate::limiter::check::Check;
use crate::limiter::gate::Gate;

/// # Partial grants
impl Gate {
    /// Takes up to `n` units for this key: as many as are available, in one atomic step. Equals `n` checks of one unit
    /// at the same instant, of which the first [`granted`](Grant::granted) are admitted.
    ///
    /// For work whose size adapts to the limit, such as a batch of messages. An `n` above the limit is not an error: at
    /// most the limit is granted. 0 [peeks](Self::peek). A gate that [counts denied
    /// checks](crate::Quota::count_denied) charges those that were not granted, up to its limit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let mail = Limiter::in_memory().gate("mail", Quota::token_bucket(5, Rate::per_minute(1)));
    /// assert_eq!(mail.take_up_to("tenant:7", 2).await?.granted(), 2);
    /// let grant = mail.take_up_to("tenant:7", 8).await?;
    /// assert_eq!((grant.granted(), grant.is_full()), (3, false));
    /// // The next unit is available after at most a minute.
    /// assert!(grant.decision().retry_after() <= Duration::from_secs(60));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); [`Error::is_config`] for an in-flight limit, whose units are
    /// [acquired](Self::acquire).
    pub async fn take_up_to(&self, key: impl AsKey, n: u64) -> Result<Grant, Error> {
        self.key(key).take_up_to(n).await
    }
}

impl Check {
    /// Takes as many of `n` such checks as are available, in one atomic step: each costs [`cost`](Self::cost) units.
    /// [`max_delay`](Self::max_delay) applies to each of them. With a cost of 0, peeks.
    ///
    /// # Errors
    ///
    /// As [`Gate::take_up_to`]; [`Error::is_over_capacity`] if the cost of one check is above the limit, and the gate
    /// is not in [shadow mode](Gate::shadow).
    pub async fn take_up_to(self, n: u64) -> Result<Grant, Error> {
        self.validate()?;
        self.pipeline.take_up_to(&self.request, n).await
    }
}

impl Limiter {
    /// Takes as many of `n` such groups of checks as all their gates have units for, in one atomic step: each gate is
    /// charged exactly the granted number of times. So the gate with the fewest units decides.
    ///
    /// As in [`check_all`](Self::check_all), two checks of the same key and gate count as one check with the sum of
    /// their costs, and a gate in shadow mode restricts nothing: it grants and charges on its own, up to `n`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::in_memory();
    /// let tenant = limiter.gate("mail.tenant", Quota::fixed_window(5, Duration::from_secs(60)));
    /// let all = limiter.gate("mail.all", Quota::fixed_window(100, Duration::from_secs(60)));
    ///
    /// let grant = limiter.take_up_to([tenant.key("tenant:7"), all.key("")], 8).await?;
    /// assert_eq!((grant.granted(), grant.decision().binding().gate()), (5, "mail.tenant"));
    /// assert_eq!(all.peek("").await?.remaining(), 95);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check_all`](Self::check_all).
    pub async fn take_up_to<C: Borrow<Check>>(
        &self,
        checks: impl IntoIterator<Item = C>,
        n: u64,
    ) -> Result<Grant<AllDecision>, Error> {
        let checks: Vec<C> = checks.into_iter().collect();
        self.pipeline.take_up_to_all(self.requests(&checks)?, n).await
    }
}

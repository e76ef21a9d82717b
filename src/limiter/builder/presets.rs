//! Several settings at once.

use std::time::Duration;

use super::Builder;
use crate::local::fallback::OnFailure;

/// # Presets
impl Builder {
    /// Makes Redis decide each check by itself: a check gets the reply of Redis, or an error. Sets
    ///
    /// | setting | without it |
    /// | --- | --- |
    /// | [`on_failure`](Self::on_failure)`(OnFailure::Error)` | this process decides while Redis does not answer |
    /// | [`deny_cache`](Self::deny_cache)`(Duration::ZERO)` | this process repeats denials for up to 500 ms |
    /// | [`breaker`](Self::breaker)`(false)` | checks get an error without a call after several unanswered ones |
    /// | [`follow_overrides`](Self::follow_overrides)`(false)` | an operator's switch decides without a call |
    /// | [`instances`](Self::instances)`(1)` | heartbeats write the number of processes, which only a fallback needs |
    ///
    /// Later calls of these methods replace a setting. Gates keep what they set themselves:
    /// [`Gate::on_failure`](crate::Gate::on_failure), [`Gate::leased`](crate::Gate::leased) and
    /// [`Gate::shadow`](crate::Gate::shadow). A gate with [`OnFailure::Local`] would take its whole quota in each
    /// process: set [`instances`](Self::instances) for it. [Batching](Self::batching) stays on, since Redis decides every
    /// check of a batch.
    ///
    /// The process still [publishes its figures](Self::publish_figures). While Redis does not answer, each check waits for
    /// its deadline.
    ///
    /// ```
    /// # fn main() -> Result<(), tidegate::Error> {
    /// let limiter = tidegate::Limiter::builder().url("redis://127.0.0.1:6379").strict().build()?;
    /// # Ok(()) }
    /// ```
    pub fn strict(self) -> Self {
        self.on_failure(OnFailure::Error)
            .deny_cache(Duration::ZERO)
            .breaker(false)
            .follow_overrides(false)
            .instances(1)
    }
}

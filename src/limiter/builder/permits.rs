//! Settings of the permits of in-flight limits.

use std::time::Duration;

use super::Builder;

/// # Permits of in-flight limits
impl Builder {
    /// Sets the time to live of this process's [permits](crate::Permit), in whole milliseconds: 1 to 60 s. If
    /// the process ends or is stopped, the store counts its permits for at most this long. A running process
    /// sends a heartbeat after each third of it.
    ///
    /// A shorter time frees the units of a lost process sooner. A longer time survives longer interruptions of
    /// the process, of Redis and of the network. Must be above three times the
    /// [patience](crate::Quota::fair) of fair gates. Processes may have different values.
    ///
    /// Default: 10 s.
    pub fn permit_ttl(mut self, ttl: Duration) -> Self {
        self.permit_ttl = ttl;
        self
    }
}

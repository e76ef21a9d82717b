//! Limits wrong tokens, by a gate in the memory of this process.

use std::time::Duration;

use ::metrics::Counter;
use tidegate::{Gate, Limiter, ManualClock, Quota, Rate, RepeatedWarning};

use crate::connections::Client;
use crate::metrics::ServiceMetrics;

/// The wrong tokens of one client: ten at once, then one each ten seconds.
const WRONG_TOKENS: Quota = Quota::token_bucket(10, Rate::per_minute(6));
/// The maximum number of clients that are remembered. Those that have failed most stay longest.
const MAX_CLIENTS: usize = 10_000;

#[derive(Debug)]
pub(super) struct Attempts {
    gate: Gate,
}

impl Attempts {
    pub(super) fn new(clock: Option<ManualClock>) -> Self {
        let builder = Limiter::builder().in_memory().max_keys(MAX_CLIENTS).stderr_warnings(false);
        let builder = match clock {
            Some(clock) => builder.manual_clock(clock),
            None => builder,
        };
        #[allow(clippy::expect_used, reason = "these settings are constants")]
        let limiter = builder.build().expect("a limiter in memory needs no server");
        Self { gate: limiter.gate("admin-tokens", WRONG_TOKENS) }
    }

    /// Counts a wrong token.
    ///
    /// # Errors
    ///
    /// The time until the next attempt, if the client has failed too often.
    pub(super) async fn count_failure(&self, client: Client) -> Result<(), Duration> {
        match self.gate.check(&*client.to_string()).await {
            Ok(decision) if decision.is_allowed() => Ok(()),
            Ok(decision) => Err(decision.retry_after()),
            // A limiter in memory does not fail.
            Err(_) => Err(Duration::from_secs(1)),
        }
    }
}

/// Where rejected tokens are reported.
pub(super) struct RejectedLogins {
    limiter: Limiter,
    warning: RepeatedWarning,
    counters: Option<Counters>,
}

struct Counters {
    wrong_token: Counter,
    too_many_attempts: Counter,
}

impl RejectedLogins {
    pub(super) fn new(limiter: Limiter, metrics: Option<&ServiceMetrics>) -> Self {
        let counters = metrics.map(|metrics| Counters {
            wrong_token: metrics.rejected_logins("wrong_token"),
            too_many_attempts: metrics.rejected_logins("too_many_attempts"),
        });
        Self { limiter, warning: RepeatedWarning::new("admin-token-rejected"), counters }
    }

    pub(super) fn wrong_token(&self, client: Client) {
        self.counters.iter().for_each(|counters| counters.wrong_token.increment(1));
        self.limiter.warn(&self.warning, || {
            format!("{client} has sent a wrong token to the admin port: see the file of --admin-tokens")
        });
    }

    pub(super) fn too_many_attempts(&self, client: Client) {
        self.counters.iter().for_each(|counters| counters.too_many_attempts.increment(1));
        self.limiter
            .warn(&self.warning, || format!("{client} has sent too many wrong tokens to the admin port"));
    }
}

impl std::fmt::Debug for RejectedLogins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RejectedLogins").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failures_of_one_client_count() {
        let clock = ManualClock::new();
        let attempts = Attempts::new(Some(clock.clone()));
        let [ada, bob] = ["10.0.0.1", "10.0.0.2"].map(|address| Client::new(address.parse().unwrap()));
        for _ in 0..10 {
            assert!(attempts.count_failure(ada).await.is_ok());
        }
        assert!(attempts.count_failure(ada).await.is_err_and(|wait| wait == Duration::from_secs(10)));
        assert!(attempts.count_failure(bob).await.is_ok());
        clock.advance(Duration::from_secs(10));
        assert!(attempts.count_failure(ada).await.is_ok());
        assert!(attempts.count_failure(ada).await.is_err());
    }
}

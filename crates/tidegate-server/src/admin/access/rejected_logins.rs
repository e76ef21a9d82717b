//! Reports rejected tokens: a warning of the limiter, and a counter.

use ::metrics::Counter;
use tidegate::{Limiter, RepeatedWarning};

use crate::client::Client;
use crate::metrics::ServiceMetrics;

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

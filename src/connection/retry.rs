//! The retries of a call: whether an attempt is followed by another, and after which pause.
//!
//! | the attempt ended with | the call ran | next attempt | made by |
//! | --- | --- | --- | --- |
//! | a lost connection | perhaps | once, if the call is repeatable | `send_to`, `Cluster::send` |
//! | the reply of an unusable server (`READONLY` and others) | no | once; in a cluster never | `send_to` |
//! | `MOVED` | no | one after each of `REDIRECT_PAUSES` | `Cluster::send` |
//! | `ASK` | no | at once to the importing node; if it has no connection, as after `MOVED` | `Cluster::send` |
//! | `CLUSTERDOWN`, for the caller that searches for the node | no | as after `MOVED` | `Cluster::send` |
//! | `NOSCRIPT` | no | as EVAL, with the rest of the budget and all pauses | `Connection::run` |
//! | `LATE`, the refusal of a bounded script | no | once, at once, with a bound for the time of the refusal | `Connection::run` |
//! | no answer by the deadline | perhaps | never | |
//!
//! So without a cluster a call is at most six commands. Each of the callers below starts again.
//!
//! Only redirects have pauses here. Reconnecting has its own (`Backoff`): during one, the next attempt to the
//! same server fails at once.
//!
//! These callers send again with a new budget. `RedisStore::call` splits a call that ended with `TRYAGAIN`,
//! which did not run: the keys of its groups are on two nodes while their slot migrates. It also sends a call of
//! gates with bans again after a lost connection, once, in place of `send_to`. `Batch::take` sends a group that travels
//! alone, and whose own keys are on two nodes, again until the deadline. `ServerClock::run_in_span`
//! sends a call with calendar windows again, at most twice, that its script refused because of the server's time.
//! `RedisStore::report_kept` sends messages again without their acquires, for which the server had no memory.
//! `RedisStore::publish` sends figures again, once, if the script wrote nothing because of the server's time.
//! `Dispatcher::drop` hands over a batch whose runtime has ended: it may have run. `SettleQueue` repeats settles of
//! holds until Redis answers: a second settle changes nothing.

use std::mem;
#[cfg(feature = "cluster")]
use std::time::Duration;

/// The pauses before a redirected command is sent again. After a node has failed, the other nodes redirect to
/// it until a replica is promoted.
#[cfg(feature = "cluster")]
pub(super) const REDIRECT_PAUSES: [Duration; 7] = {
    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
    [ms(0), ms(5), ms(10), ms(20), ms(40), ms(80), ms(160)]
};

/// The retry budget: whether a call may be sent again on a new connection, once for each cause.
pub(super) struct RetryBudget {
    after_loss: bool,
    after_rejection: bool,
}

impl RetryBudget {
    /// A call on a lost connection may have run, so it is sent again only if it `is_repeatable`.
    pub(super) const fn new(is_repeatable: bool) -> Self {
        Self { after_loss: is_repeatable, after_rejection: true }
    }

    /// The budget of a call that only the current connection can answer.
    #[cfg(feature = "admin")]
    pub(super) const fn none() -> Self {
        Self { after_loss: false, after_rejection: false }
    }

    /// Returns whether the call is sent again after a lost connection, and uses up that retry.
    pub(super) fn take_after_loss(&mut self) -> bool {
        mem::take(&mut self.after_loss)
    }

    /// Returns whether the call is sent again after the server replied that it did nothing, and uses up that
    /// retry.
    pub(super) fn take_after_rejection(&mut self) -> bool {
        mem::take(&mut self.after_rejection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeatable_call_is_sent_again_once_for_each_cause() {
        let mut retries = RetryBudget::new(true);
        assert!(retries.take_after_loss());
        assert!(retries.take_after_rejection());
        assert!(!retries.take_after_loss());
        assert!(!retries.take_after_rejection());
    }

    #[test]
    fn an_unrepeatable_call_is_sent_again_only_if_it_did_not_run() {
        let mut retries = RetryBudget::new(false);
        assert!(!retries.take_after_loss());
        assert!(retries.take_after_rejection());
        assert!(!retries.take_after_rejection());
    }

    #[cfg(feature = "admin")]
    #[test]
    fn an_empty_budget_allows_no_retry() {
        let mut retries = RetryBudget::none();
        assert!(!retries.take_after_loss());
        assert!(!retries.take_after_rejection());
    }
}

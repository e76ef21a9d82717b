//! Log events for the operator.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::{info, warn};

use crate::error::Error;
use crate::observe::observer::Observer;
use crate::observe::warning::{RECOVERED, Warning};
use crate::runtime::clock::Clock;

/// The minimum time between two events of failures, or two of bans: while Redis is unavailable, every check fails, and
/// an attack can begin many bans.
const PAUSE_US: u64 = 1_000_000;

/// Returns an observer that writes events, and then notifies the given observer, if any.
pub(crate) fn with_events(observer: Option<Arc<dyn Observer>>) -> Option<Arc<dyn Observer>> {
    Some(match observer {
        Some(observer) => Arc::new((Events::default(), observer)),
        None => Arc::new(Events::default()),
    })
}

#[derive(Default)]
struct Events {
    failures: Paced,
    bans: Paced,
}

/// Limits the events of one kind.
#[derive(Default)]
struct Paced {
    /// The earliest time of the next event, by this process's clock.
    next_us: AtomicU64,
    /// Occurrences since the last event.
    left_out: AtomicU64,
}

impl Paced {
    /// Counts an occurrence. If an event is due, returns the number of occurrences that had none.
    fn occur(&self) -> Option<u64> {
        let now_us = Clock::System.local_us();
        let next_us = self.next_us.load(Ordering::Relaxed);
        let is_due = now_us >= next_us
            && self
                .next_us
                .compare_exchange(next_us, now_us + PAUSE_US, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !is_due {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        is_due.then(|| self.left_out.swap(0, Ordering::Relaxed))
    }
}

impl Observer for Events {
    fn failed(&self, gate: &str, error: &Error) {
        if let Some(left_out) = self.failures.occur() {
            warn!(target: "tidegate", gate, kind = error.kind(), error = %error.cause(), left_out, "no decision from Redis");
        }
    }

    fn banned(&self, gate: &str, _: &dyn fmt::Display, lasts: Duration) {
        if let Some(left_out) = self.bans.occur() {
            info!(target: "tidegate", gate, ?lasts, left_out, "denials have banned a key");
        }
    }

    fn warned(&self, warning: &Warning) -> bool {
        let (code, occurrences) = (warning.code(), warning.occurrences());
        warn!(target: "tidegate", code, occurrences, "{}", warning.message());
        tracing::dispatcher::has_been_set()
    }

    fn recovered(&self) -> bool {
        info!(target: "tidegate", "{RECOVERED}");
        tracing::dispatcher::has_been_set()
    }

    fn breaker(&self, is_open: bool) {
        if is_open {
            warn!(target: "tidegate", "circuit breaker opened: Redis does not answer, so checks are not sent to it");
        } else {
            info!(target: "tidegate", "circuit breaker closed: Redis answers again");
        }
    }

    fn stranded(&self, gate: &str, units: u64) {
        warn!(target: "tidegate", gate, units, "leased units could not be given back");
    }

    fn loaded(&self, rules: usize) {
        info!(target: "tidegate", rules, "loaded rules, following their files");
    }

    fn reloaded(&self, rules: Result<usize, &Error>) {
        match rules {
            Ok(rules) => info!(target: "tidegate", rules, "reloaded rules"),
            Err(error) => {
                warn!(target: "tidegate", error = %error, "rules files contain an error: the previous rules stay active")
            }
        }
    }
}

//! Log events for the operator.

use std::sync::Arc;

use tracing::{info, warn};

use crate::observe::observer::{Event, Observer};
use crate::observe::readable_names::ReadableNames;
use crate::observe::warning::{Pace, RECOVERED};
use crate::runtime::clock::Clock;

/// Returns an observer that writes events, and then notifies the given observer, if any.
pub(super) fn with_events(observer: Option<Arc<dyn Observer>>) -> Arc<dyn Observer> {
    match observer {
        Some(observer) => Arc::new((Events::default(), observer)),
        None => Arc::new(Events::default()),
    }
}

/// Limits failures and bans: while Redis is unavailable, every check fails, and an attack can begin many bans.
#[derive(Default)]
struct Events {
    failures: Pace,
    bans: Pace,
    names: ReadableNames,
}

/// Counts an occurrence. If an event is due, returns the number of occurrences that had none.
fn left_out(pace: &Pace) -> Option<u64> {
    pace.occur(Clock::System.local_us()).map(|occurrences| occurrences.saturating_sub(1))
}

impl Observer for Events {
    #[inline]
    fn on(&self, event: &Event<'_>) {
        // Keeps the path of each decision short.
        if !matches!(event, Event::Decided(_)) {
            self.log(event);
        }
    }

    fn reports_warnings(&self) -> bool {
        tracing::dispatcher::has_been_set()
    }
}

impl Events {
    fn log(&self, event: &Event<'_>) {
        match *event {
            Event::Failed { gate, error } => {
                if let Some(left_out) = left_out(&self.failures) {
                    let gate = &*self.names.of(gate);
                    warn!(target: "tidegate", gate, kind = error.kind(), error = %error.cause(), left_out, "no decision from Redis");
                }
            }
            Event::Banned { gate, lasts, .. } => {
                if let Some(left_out) = left_out(&self.bans) {
                    let gate = &*self.names.of(gate);
                    info!(target: "tidegate", gate, ?lasts, left_out, "denials have banned a key");
                }
            }
            Event::Warned(warning) => {
                let (code, occurrences) = (warning.code(), warning.occurrences());
                warn!(target: "tidegate", code, occurrences, "{}", warning.message());
            }
            Event::Recovered => info!(target: "tidegate", "{RECOVERED}"),
            Event::BreakerOpened => {
                warn!(target: "tidegate", "circuit breaker opened: Redis does not answer, so checks are not sent to it");
            }
            Event::BreakerClosed => {
                info!(target: "tidegate", "circuit breaker closed: Redis answers again");
            }
            Event::Stranded { gate, units } => {
                let gate = &*self.names.of(gate);
                warn!(target: "tidegate", gate, units, "leased units could not be given back");
            }
            Event::GateNamed { gate, readable } => self.names.add(gate, readable),
            Event::RulesLoaded(rules) => {
                info!(target: "tidegate", rules, "loaded rules, following their files");
            }
            Event::RulesReloaded(Ok(rules)) => info!(target: "tidegate", rules, "reloaded rules"),
            Event::RulesReloaded(Err(error)) => {
                warn!(target: "tidegate", error = %error, "rules files contain an error: the previous rules stay active");
            }
            _ => {}
        }
    }
}

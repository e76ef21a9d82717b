//! Tracing (feature `tracing`). Each check has a span at `DEBUG` with its cost; the decision adds the gate,
//! outcome and source. Events at `WARN` and `INFO` notify the operator. These
//! spans and events never contain a key.
#![cfg_attr(not(feature = "tracing"), allow(unused, reason = "without the feature, nothing is recorded"))]

#[cfg(feature = "tracing")]
mod events;

use std::sync::Arc;

use super::observer::Observer;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;

/// Returns an observer that writes events, if the feature is on, and then notifies the given observer, if any.
pub(crate) fn with_events(observer: Option<Arc<dyn Observer>>) -> Option<Arc<dyn Observer>> {
    #[cfg(feature = "tracing")]
    let observer = Some(events::with_events(observer));
    observer
}

/// The span of a check, from its first poll until it is decided or dropped. It is never entered: nothing inside a check
/// is traced. An instrumented future would add a
/// level of nesting to each check's future, and callers' own levels already come close to the compiler's
/// limit. Without the feature `tracing`, there is no span in it.
pub(crate) struct Span(#[cfg(feature = "tracing")] tracing::Span);

/// Opens a span with its first field, and names those that are recorded later.
macro_rules! span {
    ($name:literal, $first:ident, $($later:ident),*) => {
        Span(
            #[cfg(feature = "tracing")]
            tracing::debug_span!(target: "tidegate", $name, $first, $($later = tracing::field::Empty),*),
        )
    };
}

impl Span {
    #[inline]
    pub(crate) fn of_check(cost: u64) -> Self {
        span!("check", cost, gate, outcome, source, error)
    }

    /// Opens the span of several checks that are admitted all or none.
    pub(crate) fn of_all(checks: usize) -> Self {
        span!("check_all", checks, gate, outcome, source, error)
    }

    /// Opens the span of several independent checks.
    pub(crate) fn of_many(checks: usize) -> Self {
        span!("check_many", checks, allowed, failed)
    }

    #[inline]
    pub(crate) fn decided(self, decided: Result<&Decision, &Error>) {
        #[cfg(feature = "tracing")]
        if !self.0.is_disabled() {
            self.record(decided.map(|decision| (decision, decision.outcome())));
        }
    }

    /// Records the gate and source of the binding decision.
    pub(crate) fn all_decided(self, decided: Result<&AllDecision, &Error>) {
        let outcome = |all: &AllDecision| if all.is_allowed() { "allowed" } else { "denied" };
        #[cfg(feature = "tracing")]
        self.record(decided.map(|all| (all.binding(), outcome(all))));
    }

    pub(crate) fn many_decided(self, decided: &[Result<Decision, Error>]) {
        let allowed = decided.iter().flatten().filter(|decision| decision.is_allowed());
        let failed = decided.iter().filter(|decided| decided.is_err());
        #[cfg(feature = "tracing")]
        self.0.record("allowed", allowed.count()).record("failed", failed.count());
    }

    #[cfg(feature = "tracing")]
    fn record(&self, decided: Result<(&Decision, &str), &Error>) {
        match decided {
            Ok((decision, outcome)) => {
                self.0.record("gate", decision.gate());
                self.0.record("outcome", outcome);
                self.0.record("source", decision.source().as_str());
            }
            Err(error) => {
                self.0.record("error", error.kind());
                if let Some(gate) = error.gate() {
                    self.0.record("gate", gate);
                }
            }
        }
    }
}

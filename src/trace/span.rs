//! A span for each ask, from its beginning until it is decided, or given up.

use tracing::debug_span;
use tracing::field::Empty;

use crate::decision::{AllDecision, Decision};
use crate::error::Error;

/// Open, and never entered: nothing is traced inside it, and a future that wraps each ask would be
/// a level more for the compiler, whose limit a caller's own levels come close to.
pub(crate) struct Span(tracing::Span);

impl Span {
    #[inline]
    pub(crate) fn of_ask(cost: u64) -> Self {
        Self(
            debug_span!(target: "tidegate", "ask", cost, gate = Empty, outcome = Empty, source = Empty, error = Empty),
        )
    }

    /// Several asks, all or nothing.
    pub(crate) fn of_all(asks: usize) -> Self {
        Self(
            debug_span!(target: "tidegate", "ask_all", asks, gate = Empty, outcome = Empty, source = Empty, error = Empty),
        )
    }

    /// Several asks, each by itself.
    pub(crate) fn of_many(asks: usize) -> Self {
        Self(debug_span!(target: "tidegate", "ask_many", asks, allowed = Empty, failed = Empty))
    }

    #[inline]
    pub(crate) fn decided(self, decided: Result<&Decision, &Error>) {
        if !self.0.is_disabled() {
            self.record(decided.map(|decision| (decision, decision.outcome())));
        }
    }

    /// Gate and source are those that bound.
    pub(crate) fn all_decided(self, decided: &Result<AllDecision, Error>) {
        let outcome = |all: &AllDecision| if all.is_allowed() { "allowed" } else { "denied" };
        self.record(decided.as_ref().map(|all| (all.binding(), outcome(all))));
    }

    pub(crate) fn many_decided(self, decided: &[Result<Decision, Error>]) {
        self.0.record("allowed", decided.iter().flatten().filter(|decision| decision.is_allowed()).count());
        self.0.record("failed", decided.iter().filter(|decided| decided.is_err()).count());
    }

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

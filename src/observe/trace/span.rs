//! A span for each check, from its first poll until it is decided or dropped.

use tracing::debug_span;
use tracing::field::Empty;

use crate::decision::{AllDecision, Decision};
use crate::error::Error;

/// An open span that is never entered: nothing inside a check is traced. An instrumented future would add a
/// level of nesting to each check's future, and callers' own levels already come close to the compiler's
/// limit.
pub(crate) struct Span(tracing::Span);

impl Span {
    #[inline]
    pub(crate) fn of_check(cost: u64) -> Self {
        Self(
            debug_span!(target: "tidegate", "check", cost, gate = Empty, outcome = Empty, source = Empty, error = Empty),
        )
    }

    /// Opens the span of several checks that are admitted all or none.
    pub(crate) fn of_all(checks: usize) -> Self {
        Self(
            debug_span!(target: "tidegate", "check_all", checks, gate = Empty, outcome = Empty, source = Empty, error = Empty),
        )
    }

    /// Opens the span of several independent checks.
    pub(crate) fn of_many(checks: usize) -> Self {
        Self(debug_span!(target: "tidegate", "check_many", checks, allowed = Empty, failed = Empty))
    }

    #[inline]
    pub(crate) fn decided(self, decided: Result<&Decision, &Error>) {
        if !self.0.is_disabled() {
            self.record(decided.map(|decision| (decision, decision.outcome())));
        }
    }

    /// Records the gate and source of the binding decision.
    pub(crate) fn all_decided(self, decided: Result<&AllDecision, &Error>) {
        let outcome = |all: &AllDecision| if all.is_allowed() { "allowed" } else { "denied" };
        self.record(decided.map(|all| (all.binding(), outcome(all))));
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

//! Where metrics and traces hook in.

use std::time::Duration;

use crate::decision::Decision;
use crate::error::Error;

/// Is told what a limiter does. Every method does nothing unless it is
/// overridden. Called on the path of each decision: must be quick, must not
/// block.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::{Decision, Observer};
///
/// #[derive(Default)]
/// struct Denials(AtomicU64);
///
/// impl Observer for Denials {
///     fn decided(&self, decision: &Decision) {
///         if !decision.is_allowed() {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// An ask was decided (not a peek), wherever the decision came from. Of
    /// several that were denied together, only those that denied are told.
    fn decided(&self, decision: &Decision) {
        let _ = decision;
    }

    /// There was no decision from the store. A decision by
    /// [`OnFailure`](crate::OnFailure) may follow.
    fn failed(&self, gate: &str, error: &Error) {
        let _ = (gate, error);
    }

    /// The circuit breaker opened: Redis is not asked any more, but for probes.
    /// Or it closed again.
    fn breaker(&self, is_open: bool) {
        let _ = is_open;
    }

    /// So many asks went to the store together and it took so long. Equal ones
    /// were merged to so many groups; where these are few beside the asks, keys
    /// are hot.
    fn called(&self, asks: usize, groups: usize, took: Duration) {
        let _ = (asks, groups, took);
    }

    /// A leased gate took so many units of a key from the store. What was leased
    /// and is not spent is held: leased, less what was spent (decisions whose
    /// source is `lease`), returned and stranded.
    fn leased(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// A leased gate gave units back.
    fn returned(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// A leased gate could not give units back: they stay charged, and nobody
    /// can spend them.
    fn stranded(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// The files of rules have changed: so many rules are in force now, or those that were before,
    /// since there are mistakes.
    fn reloaded(&self, rules: Result<usize, &Error>) {
        let _ = rules;
    }
}

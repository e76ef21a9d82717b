//! Where metrics and traces hook in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::decision::Decision;
use crate::error::Error;

/// Is told what a limiter does. Every method does nothing unless it is
/// overridden. Called on the path of each decision: must be quick, must not
/// block.
///
/// Several are one as a pair, in a pair, and so on: `(Counts, (Traces, Alarms))`. One that is to be
/// asked afterwards is given as an [`Arc`].
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

    /// An ask for a key was denied, or would have been but for shadow mode, as
    /// [`decided`](Self::decided) was told. The key is as it stands in Redis (so it shows nothing
    /// of a key that is stored as an HMAC), and is made where it is displayed, not before. Not
    /// told of a switch or a rule that denies all: nobody looked at a key.
    fn denied(&self, gate: &str, key: &dyn fmt::Display) {
        let _ = (gate, key);
    }

    /// A caller has waited for the store so long, with the time in which his ask stood in line; or a
    /// lease for its refill. What a lease, the deny cache or this process decided waited for nobody.
    fn waited(&self, took: Duration) {
        let _ = took;
    }

    /// There was no decision from the store. A decision by
    /// [`OnFailure`](crate::OnFailure) may follow.
    fn failed(&self, gate: &str, error: &Error) {
        let _ = (gate, error);
    }

    /// The circuit breaker opened: checks are not sent to Redis, which is probed. Or it closed. On a
    /// cluster, each hash tag has a circuit of its own: notified when the first one opens and when
    /// the last one closes.
    fn breaker(&self, is_open: bool) {
        let _ = is_open;
    }

    /// So many asks went to the store together and it took so long. Equal ones
    /// were merged to so many groups; where these are few beside the asks, keys
    /// are hot.
    fn called(&self, asks: usize, groups: usize, took: Duration) {
        let _ = (asks, groups, took);
    }

    /// A leased gate took so many units of a key from the store. What of it was neither
    /// spent, returned nor stranded is held.
    fn leased(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// So many units of leases were spent. Told when a block is renewed or ends, so up to
    /// a [`hold`](crate::Lease::hold) late.
    fn spent(&self, gate: &str, units: u64) {
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

    /// So many processes share the quotas, as this one has just counted.
    fn counted(&self, instances: u64) {
        let _ = instances;
    }

    /// So many gates are switched and so many keys overridden by operators, as this process has just read
    /// ([`Control`](crate::Control)). Told when that changes.
    fn ordered(&self, switches: usize, overrides: usize) {
        let _ = (switches, overrides);
    }

    /// Files of rules are followed from now on: so many rules are in force.
    fn loaded(&self, rules: usize) {
        let _ = rules;
    }

    /// The files of rules have changed: so many rules are in force now, or those that were before,
    /// since there are mistakes.
    fn reloaded(&self, rules: Result<usize, &Error>) {
        let _ = rules;
    }
}

macro_rules! tell_on {
    ($($method:ident($($name:ident: $kind:ty),*);)*) => {
        /// Both are told, one after the other.
        impl<A: Observer, B: Observer> Observer for (A, B) {
            $(fn $method(&self, $($name: $kind),*) {
                self.0.$method($($name),*);
                self.1.$method($($name),*);
            })*
        }

        impl<T: Observer + ?Sized> Observer for Arc<T> {
            $(fn $method(&self, $($name: $kind),*) {
                (**self).$method($($name),*);
            })*
        }
    };
}

tell_on! {
    decided(decision: &Decision);
    denied(gate: &str, key: &dyn fmt::Display);
    waited(took: Duration);
    failed(gate: &str, error: &Error);
    breaker(is_open: bool);
    called(asks: usize, groups: usize, took: Duration);
    leased(gate: &str, units: u64);
    spent(gate: &str, units: u64);
    returned(gate: &str, units: u64);
    stranded(gate: &str, units: u64);
    counted(instances: u64);
    ordered(switches: usize, overrides: usize);
    loaded(rules: usize);
    reloaded(rules: Result<usize, &Error>);
}

//! The hook for metrics and traces.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::decision::Decision;
use crate::error::Error;
use crate::observe::warning::Warning;
use crate::quota::settlement::Settlement;

/// Receives events of a limiter. Every method does nothing by default. Methods run on the path of each
/// decision, so they must be quick and must not block. If one panics, the panic hook reports it, and the limiter goes on
/// as if it had returned.
///
/// Combine observers as nested pairs: `(Counts, (Traces, Alarms))`. Pass an observer as an [`Arc`] to read it
/// later.
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
    /// Called when a check (not a peek) was decided, by any [source](crate::Source). If checks were denied
    /// together, only those whose own gate denied are reported.
    fn decided(&self, decision: &Decision) {
        let _ = decision;
    }

    /// Called when a check of a key was denied, or admitted only because of shadow mode, in addition to
    /// [`decided`](Self::decided). `key` displays as in Redis, so a key that is stored as an HMAC stays
    /// hidden, and is formatted only when displayed. Not called for a switch or a rule that denies all
    /// checks, since these read no key.
    fn denied(&self, gate: &str, key: &dyn fmt::Display) {
        let _ = (gate, key);
    }

    /// Called when denials have begun a [ban](crate::Gate::ban) of a key, with its duration, by the process whose check
    /// began it: at most once per ban, and not at all if the reply to that check is lost or arrives after its deadline.
    /// `key` displays as in Redis.
    fn banned(&self, gate: &str, key: &dyn fmt::Display, lasts: Duration) {
        let _ = (gate, key, lasts);
    }

    /// Called when a gate has decided a [partial grant](crate::Gate::take_up_to), with the units that it granted, and
    /// those that it denied, of at most its limit; in addition to [`decided`](Self::decided), which counts the grant as
    /// one check. In shadow mode, the caller gets the denied units too.
    fn granted(&self, gate: &str, granted: u64, denied: u64) {
        let _ = (gate, granted, denied);
    }

    /// Called when [units used](crate::Gate::charge_used) were charged, and [`Builder::debt_cap`](crate::Builder::debt_cap)
    /// cut off `units` of them, which nobody pays for.
    fn debt_capped(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// Called when a caller has waited for the store, with the total time including the time in the queue;
    /// also when a lease has waited for its refill. Not called for decisions by a lease, the deny cache or
    /// this process.
    fn waited(&self, took: Duration) {
        let _ = took;
    }

    /// Called when the store made no decision. A decision by [`OnFailure`](crate::OnFailure) may follow.
    fn failed(&self, gate: &str, error: &Error) {
        let _ = (gate, error);
    }

    /// Called when this process has noticed a mistake in its setup: at once, then at most once a second for
    /// each [code](Warning::code). Returns whether a person can read it, in a log for example. If not, the limiter
    /// writes it to [standard error](crate::Builder::stderr_warnings).
    fn warned(&self, warning: &Warning) -> bool {
        let _ = warning;
        false
    }

    /// Called when Redis decides checks again, after a warning `redis-unreachable` or `redis-refused`: as soon
    /// as it answers a check and the last failure is a second ago, but at most once a minute. Until then, a Redis that
    /// fails again and again has no further warning of the same code. Returns the same as [`warned`](Self::warned).
    fn recovered(&self) -> bool {
        false
    }

    /// Called when the circuit breaker opens: checks are no longer sent to Redis, which is probed. Also
    /// called when it closes. On a cluster, each hash tag has a circuit of its own: called when the first one
    /// opens and when the last one closes.
    fn breaker(&self, is_open: bool) {
        let _ = is_open;
    }

    /// Called when `checks` checks went to the store in one call, merged to `groups` distinct checks. A low
    /// number of groups relative to checks means hot keys.
    fn called(&self, checks: usize, groups: usize, took: Duration) {
        let _ = (checks, groups, took);
    }

    /// Called when a leased gate took `units` of a key from the store. Units that are neither spent, returned
    /// nor stranded are held.
    fn leased(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// Called when `units` of leases were spent. Reported when a block is renewed or ends, so up to a
    /// [`hold`](crate::Lease::hold) late.
    fn spent(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// Called when a leased gate gave `units` back.
    fn returned(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// Called when a leased gate could not give `units` back: they stay charged and cannot be spent.
    fn stranded(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// Called when permits of a gate with an in-flight limit were admitted, with their units, and when they were
    /// released, with the negative number. The sum is the number of units that this process holds.
    fn permits_held(&self, gate: &str, change: i64) {
        let _ = (gate, change);
    }

    /// Called with 1 when an acquire begins to wait for its answer, and with -1 when it ends.
    fn permits_waiting(&self, gate: &str, change: i64) {
        let _ = (gate, change);
    }

    /// Called when the lease of this process lapsed, with the units that it held of a key: the store counted them
    /// no more.
    fn permits_lapsed(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// Called when the store counts `units` of a key again, after a lapse.
    fn permits_restored(&self, gate: &str, units: u64) {
        let _ = (gate, units);
    }

    /// Called when this process has learned the [adaptive](crate::Gate::adaptive) limit of a key of this gate, and
    /// when it has learned that it changed. The probes, which lower a limit for a moment, are included.
    fn limit_adapted(&self, gate: &str, limit: u64) {
        let _ = (gate, limit);
    }

    /// Called when a check of a [reservation](crate::Limiter::reserve) was settled; also for
    /// [`Settlement::Queued`](Settlement::Queued), and again when Redis has answered the queued settle.
    fn settled(&self, gate: &str, settlement: Settlement) {
        let _ = (gate, settlement);
    }

    /// Called when this process has counted the processes that share the quotas.
    fn counted(&self, instances: u64) {
        let _ = instances;
    }

    /// Called when this process has read a changed number of switched gates or overridden keys
    /// ([`Control`](crate::Control)).
    fn overrides_changed(&self, switches: usize, overrides: usize) {
        let _ = (switches, overrides);
    }

    /// Called when rules files are followed from now on, with the number of active rules.
    fn loaded(&self, rules: usize) {
        let _ = rules;
    }

    /// Called when rules files have changed, with the number of rules that are now active. On an error the
    /// previous rules stay active.
    fn reloaded(&self, rules: Result<usize, &Error>) {
        let _ = rules;
    }
}

macro_rules! forward_events {
    ($($method:ident($($name:ident: $kind:ty),*);)*) => {
        /// Calls both observers, one after the other.
        impl<A: Observer, B: Observer> Observer for (A, B) {
            $(fn $method(&self, $($name: $kind),*) {
                self.0.$method($($name),*);
                self.1.$method($($name),*);
            })*

            fn warned(&self, warning: &Warning) -> bool {
                self.0.warned(warning) | self.1.warned(warning)
            }

            fn recovered(&self) -> bool {
                self.0.recovered() | self.1.recovered()
            }
        }

        impl<T: Observer + ?Sized> Observer for Arc<T> {
            $(fn $method(&self, $($name: $kind),*) {
                (**self).$method($($name),*);
            })*

            fn warned(&self, warning: &Warning) -> bool {
                (**self).warned(warning)
            }

            fn recovered(&self) -> bool {
                (**self).recovered()
            }
        }

        impl Observer for PanicGuard {
            $(fn $method(&self, $($name: $kind),*) {
                guarded(|| self.0.$method($($name),*));
            })*

            fn warned(&self, warning: &Warning) -> bool {
                guarded(|| self.0.warned(warning))
            }

            fn recovered(&self) -> bool {
                guarded(|| self.0.recovered())
            }
        }
    };
}

/// Keeps the panics of an observer from the limiter: one between an admission and its permit would leak the units, and
/// one in a background job would end the job.
pub(crate) struct PanicGuard(Arc<dyn Observer>);

impl PanicGuard {
    pub(crate) fn around(observer: Arc<dyn Observer>) -> Arc<dyn Observer> {
        Arc::new(Self(observer))
    }
}

/// Returns the default if the call panics. No state of the limiter is behind an observer.
fn guarded<T: Default>(call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_default()
}

forward_events! {
    decided(decision: &Decision);
    denied(gate: &str, key: &dyn fmt::Display);
    banned(gate: &str, key: &dyn fmt::Display, lasts: Duration);
    granted(gate: &str, granted: u64, denied: u64);
    debt_capped(gate: &str, units: u64);
    waited(took: Duration);
    failed(gate: &str, error: &Error);
    breaker(is_open: bool);
    called(checks: usize, groups: usize, took: Duration);
    leased(gate: &str, units: u64);
    spent(gate: &str, units: u64);
    returned(gate: &str, units: u64);
    stranded(gate: &str, units: u64);
    permits_held(gate: &str, change: i64);
    permits_waiting(gate: &str, change: i64);
    permits_lapsed(gate: &str, units: u64);
    permits_restored(gate: &str, units: u64);
    limit_adapted(gate: &str, limit: u64);
    settled(gate: &str, settlement: Settlement);
    counted(instances: u64);
    overrides_changed(switches: usize, overrides: usize);
    loaded(rules: usize);
    reloaded(rules: Result<usize, &Error>);
}

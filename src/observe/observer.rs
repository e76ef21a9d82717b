//! The events of a limiter, for metrics and traces.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::decision::Decision;
use crate::error::Error;
use crate::error::redact::RedactedKey;
#[cfg(feature = "regions")]
use crate::observe::replication::Status;
use crate::observe::warning::Warning;
use crate::quota::settlement::Settlement;

/// Receives the [events](Event) of a limiter. Runs on the path of each decision, so it must be quick and must not
/// block. If it panics, the panic hook reports it, and the limiter goes on as if it had returned.
///
/// Combine observers as nested pairs: `(Counts, (Traces, Alarms))`. Pass an observer as an [`Arc`] to read it
/// later.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::{Event, Observer};
///
/// #[derive(Default)]
/// struct Denials(AtomicU64);
///
/// impl Observer for Denials {
///     fn on(&self, event: &Event<'_>) {
///         if let Event::Decided(decision) = event
///             && !decision.is_allowed()
///         {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called with each event.
    fn on(&self, event: &Event<'_>);

    /// Returns whether a person can read the [warnings](Event::Warned) that this observer receives, in a log for example.
    /// If not, the limiter writes them to [standard error](crate::Builder::stderr_warnings).
    fn reports_warnings(&self) -> bool {
        false
    }
}

/// Calls both observers, one after the other.
impl<A: Observer, B: Observer> Observer for (A, B) {
    #[inline]
    fn on(&self, event: &Event<'_>) {
        self.0.on(event);
        self.1.on(event);
    }

    fn reports_warnings(&self) -> bool {
        self.0.reports_warnings() || self.1.reports_warnings()
    }
}

impl<T: Observer + ?Sized> Observer for Arc<T> {
    #[inline]
    fn on(&self, event: &Event<'_>) {
        (**self).on(event);
    }

    fn reports_warnings(&self) -> bool {
        (**self).reports_warnings()
    }
}

/// An event of a limiter. `gate` is the name of the gate that it concerns.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant describes its fields")]
pub enum Event<'a> {
    /// A check (not a peek) was decided, by any [source](crate::Source). If checks were denied together, only
    /// those whose own gate denied are reported.
    Decided(&'a Decision),

    /// A check of a key was denied, or admitted only because of shadow mode, in addition to
    /// [`Decided`](Self::Decided). Not reported for a switch or a rule that denies all checks, since these read no key.
    Denied { gate: &'a str, key: EventKey<'a> },

    /// Denials have begun a [ban](crate::Gate::ban) of a key, with its duration. Reported by the process whose check
    /// began it: at most once per ban, and not at all if the reply to that check is lost or arrives after its deadline.
    Banned { gate: &'a str, key: EventKey<'a>, lasts: Duration },

    /// A gate has decided a [partial grant](crate::Gate::take_up_to), with the units that it granted, and those that
    /// it denied, of at most its limit; in addition to [`Decided`](Self::Decided), which counts the grant as one check.
    /// In shadow mode, the caller gets the denied units too.
    Granted { gate: &'a str, granted: u64, denied: u64 },

    /// [Units used](crate::Gate::charge_used) were charged, and [`Builder::debt_cap`](crate::Builder::debt_cap) cut
    /// off `units` of them, which nobody pays for.
    DebtCapped { gate: &'a str, units: u64 },

    /// A caller has waited for the store, with the total time including the time in the queue; also if a lease has
    /// waited for its refill. Not reported for decisions by a lease, the deny cache or this process.
    Waited(Duration),

    /// The store made no decision. A decision by [`OnFailure`](crate::OnFailure) may follow.
    Failed { gate: &'a str, error: &'a Error },

    /// This process has noticed a mistake in its setup: reported at once, then at most once a second for each
    /// [code](Warning::code).
    Warned(&'a Warning),

    /// Redis decides checks again, after a warning `redis-unreachable` or `redis-refused`: reported as soon as it
    /// answers a check and the last failure is a second ago, but at most once a minute. Until then, a Redis that fails
    /// again and again has no further warning of the same code.
    Recovered,

    /// The circuit breaker opened: checks are no longer sent to Redis, which is probed. On a cluster, each hash tag
    /// has a circuit of its own: reported when the first one opens.
    BreakerOpened,

    /// The circuit breaker closed; on a cluster, the last open circuit did.
    BreakerClosed,

    /// `checks` checks went to the store in one call, merged to `groups` distinct checks. A low number of groups
    /// relative to checks means hot keys.
    Called { checks: usize, groups: usize, took: Duration },

    /// A leased gate took `units` of a key from the store. Units that are neither spent, returned nor stranded are held.
    Leased { gate: &'a str, units: u64 },

    /// `units` of leases were spent. Reported when a block is renewed or ends, so up to a
    /// [`hold`](crate::Lease::hold) late.
    Spent { gate: &'a str, units: u64 },

    /// A leased gate gave `units` back.
    Returned { gate: &'a str, units: u64 },

    /// A leased gate could not give `units` back: they stay charged and cannot be spent.
    Stranded { gate: &'a str, units: u64 },

    /// Permits of a gate with an in-flight limit were admitted, with their units, or released, with the negative
    /// number. The sum is the number of units that this process holds.
    PermitsHeld { gate: &'a str, change: i64 },

    /// An acquire begins to wait for its answer, with 1, or ends, with -1.
    PermitsWaiting { gate: &'a str, change: i64 },

    /// The lease of this process lapsed, with the units that it held of a key: the store counted them no more.
    PermitsLapsed { gate: &'a str, units: u64 },

    /// The store counts `units` of a key again, after a lapse.
    PermitsRestored { gate: &'a str, units: u64 },

    /// This process has learned the [adaptive](crate::Gate::adaptive) limit of a key of this gate, or that it changed.
    /// The probes, which lower a limit for a moment, are included.
    LimitAdapted { gate: &'a str, limit: u64 },

    /// A check of a [reservation](crate::Limiter::reserve) was settled; also for [`Settlement::Queued`], and again
    /// when Redis has answered the queued settle.
    Settled { gate: &'a str, settlement: Settlement },

    /// This process has counted the processes that share the quotas.
    InstancesCounted(u64),

    /// This process has read a changed number of switched gates or overridden keys ([`Control`](crate::Control)).
    OverridesChanged { switches: usize, overrides: usize },

    /// The state of the [replication](crate::Limiter::regions), each second: `now`, and as it was in the event before. The
    /// differences between their counters are what has happened since.
    #[cfg(feature = "regions")]
    Replicated { now: &'a Status, last: &'a Status },

    /// A rule has given a gate a name for people, such as `api / path=/login / user`, for labels and log entries: reported
    /// when rules are bound, and at each reload. No other gate of the rules has this name.
    GateNamed { gate: &'a str, readable: &'a str },

    /// Rules files are followed from now on, with the number of active rules.
    RulesLoaded(usize),

    /// Rules files have changed, with the number of rules that are now active. On an error the previous rules stay
    /// active.
    RulesReloaded(Result<usize, &'a Error>),
}

/// The key of an event. Displays as in Redis, so a key that is stored as an HMAC stays hidden. Formatted only when it
/// is displayed.
#[derive(Clone, Copy)]
pub struct EventKey<'a>(pub(crate) &'a dyn fmt::Display);

impl fmt::Display for EventKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Shows at most two bytes of the key, as errors do.
impl fmt::Debug for EventKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RedactedKey::new(self.to_string().as_bytes()).fmt(f)
    }
}

/// The observer of a limiter, if it has one. Keeps the panics of an observer from the limiter: one between an admission
/// and its permit would leak the units, and one in a background job would end the job.
#[derive(Clone)]
pub(crate) struct EventSink(Option<Arc<dyn Observer>>);

impl EventSink {
    pub(crate) const fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self(observer)
    }

    /// Returns whether there is an observer.
    #[inline]
    pub(crate) const fn is_observed(&self) -> bool {
        self.0.is_some()
    }

    /// Notifies the observer.
    #[inline]
    pub(crate) fn notify(&self, event: &Event<'_>) {
        if let Some(observer) = &self.0 {
            guarded(|| observer.on(event));
        }
    }

    /// Returns whether a person can read the warnings that the observer receives.
    pub(crate) fn reports_warnings(&self) -> bool {
        self.0.as_ref().is_some_and(|observer| guarded(|| observer.reports_warnings()))
    }
}

/// Returns the default if the call panics. No state of the limiter is behind an observer.
#[inline]
fn guarded<T: Default>(call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_default()
}

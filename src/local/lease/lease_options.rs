//! The settings of a gate's leases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::quota::Quota;

/// The lease settings of a gate: see [`Gate::leased`](crate::Gate::leased).
///
/// A leased gate takes units of a frequently checked key from Redis in blocks, and then spends them in this
/// process. A check of that key costs some 100 ns instead of a round trip, also from many threads at once. In
/// return the limit holds less tightly.
///
/// # Bounds
///
/// With `B` = [`max_units`](Self::max_units), `ℓ` = [`hold`](Self::hold), `I` leased gates of this name
/// (usually one per process), and any interval of length `T`:
///
/// | algorithm | maximum admitted in the interval | without leases |
/// | --- | --- | --- |
/// | token bucket | `capacity + rate·T + min(I·B, rate·ℓ)` | `capacity + rate·T` |
/// | fixed window | `limit` in each window: a lease ends with it | the same |
/// | sliding counter | as it is defined: a lease ends with the clock's window | the same |
/// | sliding log | `limit + min(limit, I·B)` in `T = window` | `limit` |
/// | leaky bucket, `count_denied`, in flight | cannot be leased: every check is an error | |
///
/// To hold a log to `limit` in every window of the intended length, configure a `window` longer by `ℓ`.
///
/// Checks can be denied although units are unspent: processes that may not spend them hold up to `I·B` units
/// of a key. Unspent units return to the store when their lease ends. A killed process does not return its
/// units of the key: at most `B`, plus the take in flight. They stay charged until they drain or leave the
/// window. A killed process never creates units.
///
/// # Other differences
///
/// - A decision from a lease has the source `lease`. Its `remaining` is the number of units left in the
///   lease. Its `reset_after` is the value known when the block was taken.
/// - `peek`, `check_many`, `check_all` and all writes go to Redis. The usage that they report includes leased
///   units.
/// - A block or a penalty does not stop this or another process from spending units that are already leased,
///   for at most `ℓ`. Neither does a reset by another gate.
/// - A reset clears all charges, including those of leased units. Units that other processes hold, or that
///   are in flight at that moment, can still be spent or given back to the key: up to `I·B` extra units per
///   reset.
/// - Lease times follow this machine's clock. A suspended machine holds its leases longer, by the time that
///   it was suspended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use std::time::Duration;
/// use tidegate::{Lease, Limiter, Quota, Rate};
///
/// let limiter = Limiter::in_memory(); // in a fleet: Limiter::open("redis://…")?
/// let api = limiter
///     .gate("api", Quota::token_bucket(10_000, Rate::per_second(10_000)))
///     .leased(Lease::new().max_units(500).hold(Duration::from_millis(500)));
///
/// // Spends from a lease without waiting if possible. Otherwise calls Redis.
/// let decision = match api.try_check("tenant:7") {
///     Some(decision) => decision,
///     None => api.check("tenant:7").await?,
/// };
/// assert!(decision.is_allowed());
///
/// limiter.shutdown().await; // gives the leased units back
/// # Ok(()) }
/// ```
#[must_use = "a lease does nothing until a gate is `leased` with it"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    max_units: Option<u64>,
    hold: Duration,
    max_keys: usize,
}

impl Lease {
    /// Returns the default settings.
    pub const fn new() -> Self {
        Self { max_units: None, hold: Duration::from_secs(1), max_keys: 100_000 }
    }

    /// Sets the maximum number of units of one key that the gate holds at once, in the current block and the
    /// next one together: `B` in the [bounds](Self#bounds). Checks with a higher cost always go to Redis.
    /// 0 disables leasing. Clamped to 2^32 - 1 and to the quota's limit.
    ///
    /// Default: a tenth of the quota's limit, at least 1.
    pub const fn max_units(mut self, units: u64) -> Self {
        self.max_units = Some(units);
        self
    }

    /// Sets the maximum time that a unit is held before it is spent or given back: `ℓ` in the
    /// [bounds](Self#bounds). It starts when the take is sent, and counts in whole ms. Less than 1 ms
    /// disables leasing. Clamped to one hour.
    ///
    /// Default: 1 s.
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Sets the maximum number of keys that are leased at once. Checks of further keys go to Redis until the
    /// leases of unused keys end. The first lease allocates 100 to 200 bytes for each of the `keys`. Each
    /// leased key takes up to 400 bytes more. 0 disables leasing. Clamped to 2^24.
    ///
    /// Default: 100,000.
    pub const fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Returns the settings for this quota, or `None` if they disable leasing.
    pub(super) fn terms(self, quota: &Quota) -> Option<LeaseTerms> {
        let limit = quota.limit();
        let max_units = self.max_units.unwrap_or((limit / 10).max(1)).min(limit);
        let terms = LeaseTerms {
            max_units: u32::try_from(max_units).unwrap_or(u32::MAX),
            hold_us: self.hold.min(Duration::from_secs(3_600)).as_micros() as u64,
            max_keys: self.max_keys.min(1 << 24),
        };
        (terms.max_units > 0 && terms.hold_us >= 1_000 && terms.max_keys > 0).then_some(terms)
    }
}

impl Lease {
    /// Checks that units of this quota can be leased.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] with the reason if they cannot: a leaky bucket, a log that counts denied
    /// checks, and in-flight limits.
    pub fn check_quota(quota: &Quota) -> Result<(), Error> {
        match quota.kind().algorithm().unleasable() {
            Some(reason) => Err(Error::config(reason)),
            None => Ok(()),
        }
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self::new()
    }
}

/// A [`Lease`] as it applies to one gate.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerms {
    pub(super) max_units: u32,
    pub(super) hold_us: u64,
    pub(super) max_keys: usize,
}

// Counts the fate of the units of a leased gate.

/// The units that a leased gate has taken, by their fate, from
/// [`Gate::lease_stats`](crate::Gate::lease_stats).
///
/// While no check is in progress, `taken = spent + held + returned + stranded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// The number of keys that have a lease, or had one recently.
    pub keys: usize,
    /// Units taken from the store.
    pub taken: u64,
    /// Units spent by admitted checks.
    pub spent: u64,
    /// Units that can be spent, or are being given back.
    pub held: u64,
    /// Units given back, or discarded by a reset.
    pub returned: u64,
    /// Units that could not be given back: they stay charged and cannot be spent.
    pub stranded: u64,
}

/// Written by the worker, except `returned` and `spent`, which a reset writes too. Aligned to cache lines of
/// its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) keys: AtomicU64,
    pub(super) taken: AtomicU64,
    /// Units with which the open slots were opened.
    pub(super) opened: AtomicU64,
    /// Units spent from closed slots. Wraps below 0 if units of an open slot were discarded, since closing
    /// that slot counts them as spent.
    pub(super) spent: AtomicU64,
    /// The part of `spent` reported to the observer.
    pub(super) reported_spent: AtomicU64,
    /// Units of refunds in flight.
    pub(super) returning: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) stranded: AtomicU64,
}

impl Counters {
    /// Returns the counts, given the units left in all slots.
    pub(super) fn stats(&self, left: u64) -> LeaseStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Units that are missing from open slots were spent, too.
        let spent = read(&self.spent).wrapping_add(read(&self.opened)).wrapping_sub(left);
        LeaseStats {
            keys: read(&self.keys) as usize,
            taken: read(&self.taken),
            spent,
            held: left + read(&self.returning),
            returned: read(&self.returned),
            stranded: read(&self.stranded),
        }
    }
}

pub(super) fn add(counter: &AtomicU64, units: u64) {
    counter.fetch_add(units, Ordering::Relaxed);
}

//! The settings of a gate's leases.

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
/// | leaky bucket, `count_denied` | cannot be leased: every check is an error | |
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
    pub(super) fn terms(self, quota: &Quota) -> Option<Terms> {
        let limit = quota.limit();
        let max_units = self.max_units.unwrap_or((limit / 10).max(1)).min(limit);
        let terms = Terms {
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
    /// [`Error::is_config`] with the reason if they cannot: a leaky bucket, and a log that counts denied
    /// checks.
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
pub(super) struct Terms {
    pub(super) max_units: u32,
    pub(super) hold_us: u64,
    pub(super) max_keys: usize,
}

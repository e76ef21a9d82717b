//! Leases: units taken from the store in blocks, to be spent by this process
//! without asking.
//!
//! ```text
//! try_check ── spend ──> Table of Slots <── open, close ── Ledger <── Worker ──> store
//!      └── low, or asked for often ──> Queue ─────────────────────────┘
//! ```
//!
//! Spenders (any thread, no lock, no await) only ever lower what is in a slot.
//! All else is one task's: the worker takes blocks, opens them, closes what has
//! ended and gives back what was left, with the stamp of the take, so that it
//! counts as if it had never been taken. The ledger decides what the worker does
//! and is plain arithmetic.
//!
//! A unit is charged before it can be spent and is spent at most once, so no
//! failure invents any: what is not given back stays charged.

mod demand;
mod entry;
mod ledger;
mod packed_key;
mod queue;
mod registry;
mod shared;
mod slot;
mod table;
mod worker;

use std::time::Duration;

pub(crate) use self::registry::Registry;
pub(crate) use self::shared::Leases;
pub(crate) use self::worker::Upstream;
use crate::error::Error;
use crate::quota::{Kind, Quota};

/// How a gate leases: see [`Gate::leased`](crate::Gate::leased).
///
/// A leased gate takes units of a key that is asked for often from Redis in
/// blocks, and then spends them in this process: a check of that key costs some
/// 100 ns instead of a round trip, also from many threads at once. In return the
/// limit holds less tightly.
///
/// # What is admitted at most
///
/// With `B` = [`max_units`](Self::max_units), `ℓ` = [`hold`](Self::hold), `I`
/// leased gates of this name (one in each process, as a rule), and any interval
/// of length `T`:
///
/// | algorithm | admitted at most in the interval | without leases |
/// | --- | --- | --- |
/// | token bucket | `capacity + rate·T + min(I·B, rate·ℓ)` | `capacity + rate·T` |
/// | fixed window | `limit` in each window: a lease ends with it | the same |
/// | sliding counter | as its definition says: a lease ends with the clock's window | the same |
/// | sliding log | `limit + min(limit, I·B)` in `T = window` | `limit` |
/// | leaky bucket, `count_denied` | cannot be leased: every ask is an error | |
///
/// For a log, a `window` longer by `ℓ` keeps `limit` in every window of the
/// length that was meant.
///
/// What others can be denied wrongly: up to `I·B` units of a key are held by
/// processes that may not spend them. They come back when they end. A process
/// that is killed keeps its units of the key, at most `B` and what it was just
/// asking for, until they drain or leave the window; it never invents any.
///
/// # What else changes
///
/// - A decision from a lease has the source `lease`. Its `remaining` is what is
///   left in the lease, its `reset_after` as known when the block was taken.
/// - `peek`, `check_many`, `check_all` and all writes go to Redis. What they
///   see includes the units that are leased.
/// - A block or a penalty stops nobody from spending what is leased already, in
///   this process or another: for at most `ℓ`. Nor does a reset by another gate.
/// - A reset makes untouched what is charged, leased units with it. Those that are
///   held elsewhere, or on their way just then, can still be spent or given back
///   to the key: up to `I·B` units more, once for each reset.
/// - Times of a lease are this machine's: a machine that is suspended holds its
///   leases for as much longer.
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
/// // Without waiting where a lease has it, else by asking Redis.
/// let decision = match api.try_check("tenant:7") {
///     Some(decision) => decision,
///     None => api.check("tenant:7").await?,
/// };
/// assert!(decision.is_allowed());
///
/// limiter.shutdown().await; // gives back what is leased
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
    /// The defaults.
    pub const fn new() -> Self {
        Self { max_units: None, hold: Duration::from_secs(1), max_keys: 100_000 }
    }

    /// The most units of one key that the gate holds at once, the block in use
    /// and the next one together: `B` in the [bounds](Self). A cost above it is
    /// always asked of Redis; 0 leases nothing. At most 2^32 - 1, and the
    /// quota's limit.
    ///
    /// Default: a tenth of the quota's limit, at least 1.
    pub const fn max_units(mut self, units: u64) -> Self {
        self.max_units = Some(units);
        self
    }

    /// The longest that a unit is held before it is spent or given back: `ℓ` in
    /// the [bounds](Self). Counted from when its take was sent, in whole ms. Below
    /// 1 ms leases nothing; at most an hour.
    ///
    /// Default: 1 s.
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// The most keys that are leased at once. Beyond it, keys are asked of Redis
    /// until others are no longer used. Costs 100 to 200 bytes for each at the
    /// first lease, and up to 400 more for each that is leased. 0 leases nothing;
    /// at most 2^24.
    ///
    /// Default: 100,000.
    pub const fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// What it means for this quota; `None` if it leases nothing.
    fn terms(self, quota: &Quota) -> Option<Terms> {
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

impl Default for Lease {
    fn default() -> Self {
        Self::new()
    }
}

/// A [`Lease`] as it applies to one gate.
#[derive(Clone, Copy, Debug)]
struct Terms {
    max_units: u32,
    hold_us: u64,
    max_keys: usize,
}

/// What a leased gate has taken, and what became of it:
/// `taken = spent + held + returned + stranded`, when nobody is asking.
/// From [`Gate::lease_stats`](crate::Gate::lease_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Keys that have a lease, or had one a moment ago.
    pub keys: usize,
    /// Units taken from the store.
    pub taken: u64,
    /// Units spent by asks that were admitted.
    pub spent: u64,
    /// Units that can be spent, or are on their way back.
    pub held: u64,
    /// Units given back, or forgotten with a reset.
    pub returned: u64,
    /// Units that could not be given back: charged, and spent by nobody.
    pub stranded: u64,
}

/// Whether this quota can be leased.
pub(crate) fn check_leasable(quota: &Quota) -> Result<(), Error> {
    let why = match quota.kind() {
        Kind::LeakyBucket(_) => {
            "a leaky bucket cannot be leased, since each ask has a place in its queue: use it without `leased`, or a token bucket"
        }
        Kind::SlidingLog(log) if log.count_denied => {
            "a sliding log that counts denied asks cannot be leased, since every ask has to be seen: leave out `count_denied` or `leased`"
        }
        _ => return Ok(()),
    };
    Err(Error::config(why))
}

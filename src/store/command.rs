//! The operations of a store other than takes: small writes, heartbeats and overrides.

use std::time::Duration;

use super::target::Target;
use crate::error::Error;
use crate::key::Keyspace;
use crate::quota::reference::Before;
use crate::quota::reference::adapt::Adaptation;

/// Small writes other than a take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// Returns units. With the stamp of the take that charged them, returns only those that still count.
    Refund { units: u64, stamp_us: Option<u64> },
    /// Charges units without a check.
    Penalize { units: u64 },
    /// Denies everything for `for_us`; 0 lifts the block.
    Block { for_us: u64 },
    /// Removes the state.
    Reset,
}

/// The reply to a small write; without meaning for a reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// The store's clock, in µs since 1970.
    pub(crate) now_us: u64,
    /// Of a penalty in Redis, the stamp by which its units are refunded: see
    /// [`Algorithm::stamp`](crate::quota::algorithm::Algorithm::stamp). Otherwise the store's clock.
    pub(crate) stamp_us: u64,
}

/// The result of charging units that were used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsedCharge {
    /// At most the units that were used: the bound of the debt can cut some off.
    pub(crate) charged: u64,
    pub(crate) before: Before,
    /// The store's clock, in µs since 1970.
    pub(crate) now_us: u64,
}

/// One hold to settle.
#[derive(Clone, Debug)]
pub(crate) struct SettleItem {
    pub(crate) target: Target,
    /// The units that the reservation charged.
    pub(crate) units: u64,
    /// The units that were used; 0 cancels.
    pub(crate) actual: u64,
}

/// The sign of life of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heartbeat<'a> {
    /// The key in which the processes that share the quotas are counted.
    pub(crate) key: &'a str,
    pub(crate) name: &'a str,
    /// How long the process counts after this heartbeat.
    pub(crate) lifetime: Duration,
}

/// What one process publishes: see [`crate::observe::figures`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publication<'a> {
    pub(crate) keyspace: &'a Keyspace,
    pub(crate) id: &'a str,
    /// The words of its record, without the time.
    pub(crate) record: &'a str,
    /// Fields and texts of the figures; may be empty.
    pub(crate) fields: &'a [(String, String)],
}

/// A change of a holder's lease. The name ends in the lease's length: see
/// [`Message`](super::take::HolderMessage).
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseCall<'a> {
    /// Opens a lease. Renews it if it is open already, so that the call can be repeated.
    Open { name: &'a str },
    /// Renews a lease; an error [of a lapsed lease](Error::is_lapsed_lease) if it has ended.
    Renew { name: &'a str },
    /// Ends a lease, whose holder holds nothing.
    End { name: &'a str },
}

/// A lease after a [`LeaseCall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseReply {
    /// The server's clock, in µs since 1970.
    pub(crate) now_us: u64,
    /// The end of the lease, in µs since 1970.
    pub(crate) end_us: u64,
}

/// The adaptive limit of a key after a report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adapted {
    pub(crate) adaptation: Adaptation,
    /// The store's clock, in µs since 1970.
    pub(crate) now_us: u64,
    /// After how many µs the process reports again.
    pub(crate) wait_us: u64,
}

/// An operator's override to write: [`crate::local::overrides`].
#[derive(Debug)]
pub(crate) struct OverrideText {
    pub(crate) field: String,
    /// `None` removes the override.
    pub(crate) text: Option<String>,
    /// `None`: until it is removed.
    pub(crate) lasts_us: Option<u64>,
}

/// The operators' overrides in the store.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// The clock that decides when they end.
    pub(crate) now_us: u64,
    /// When they were last changed; empty if never.
    pub(crate) changed: String,
    /// Fields and texts; empty if nothing has changed since the caller's version.
    pub(crate) fields: Vec<(String, String)>,
    /// The number of overrides that are not in `fields`: they exceed [`MAX_OVERRIDES`] or
    /// [`MAX_OVERRIDE_BYTES`].
    pub(crate) left_out: u64,
}

/// The maximum number of overrides in a namespace: each process keeps all of them, and reads all when one has
/// changed.
pub(crate) const MAX_OVERRIDES: usize = 4_096;
/// The maximum bytes of an override that a process reads. The longest that tidegate writes are shorter.
pub(crate) const MAX_OVERRIDE_BYTES: usize = 1_024;

pub(super) fn too_many_overrides() -> Error {
    Error::config(format!(
        "there are {MAX_OVERRIDES} overrides, as many as there can be: take one back, or give whole groups of keys a gate with a quota of its own"
    ))
}

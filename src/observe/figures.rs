//! The figures of the fleet: the counters of each instance's gates, which it adds to hashes in Redis with its
//! heartbeats.
//!
//! There is one hash for each 5 s of the server's clock, kept for an hour. A field is the name of a gate, its text
//! the sum of all instances. See [`format`](self::format).

mod counters;
pub(crate) mod format;
mod registry;

use std::time::Duration;

pub(crate) use self::counters::GateCounters;
#[cfg(feature = "admin")]
pub(crate) use self::counters::Histogram;
pub(crate) use self::registry::Figures;

/// The time of one hash of figures.
pub(crate) const BUCKET: Duration = Duration::from_secs(5);
/// How long a hash of figures is kept after its time.
pub(crate) const KEPT: Duration = Duration::from_secs(3_600);
/// The time of one hash of instance records, which is kept for twice this time.
pub(crate) const RECORDS_BUCKET: Duration = Duration::from_secs(15);
/// The maximum number of gates in one hash. Further gates are summed under [`OTHER`](self::format::OTHER).
pub(crate) const MAX_GATES: usize = 256;
/// The maximum number of instances in one hash of records. Further instances are left out.
pub(crate) const MAX_INSTANCES: usize = 1_024;

//! Leases: units taken from the store in blocks, which this process spends without calling the store.
//!
//! ```text
//! try_check ── spend ──> Table of Slots <── open, close ── Ledger <── Worker ──> store
//!      └── low, or checked often ──> Queue ───────────────────────────┘
//! ```
//!
//! Spenders (any thread, no lock, no await) only decrease the units of a slot. A single task, the worker,
//! does everything else: it takes blocks, opens them, closes those that have ended, and gives their remaining
//! units back. It gives units back with the stamp of their take, so that they count as if they had never been
//! taken. The ledger, which is plain arithmetic, decides the worker's next steps.
//!
//! A unit is charged before it can be spent, and it is spent at most once. So no failure creates units: units
//! that are not given back stay charged.

mod blocks;
mod demand;
mod lease_options;
mod leased_gate;
mod leased_key;
mod leases;
mod ledger;
mod packed_key;
mod queue;
mod slot;
mod table;
mod worker;

pub use self::lease_options::Lease;
pub use self::lease_options::LeaseStats;
pub(crate) use self::leases::LeaseRegistry;
pub(crate) use self::leases::Leases;
pub(crate) use self::worker::Upstream;

//! What the tests of several crates share: limiters on a test server, random plans, an oracle, and fleets under
//! load.
#![allow(missing_docs, missing_debug_implementations, reason = "not published")]
#![allow(
    clippy::unwrap_used,
    clippy::must_use_candidate,
    reason = "a test that cannot continue should panic"
)]

pub mod acl;
pub mod acquired;
pub mod bans;
pub mod black_hole;
pub mod captured_events;
pub mod door;
pub mod fixture;
pub mod fleet;
pub mod hear;
pub mod holds;
pub mod instance;
pub mod load;
pub mod oracle;
pub mod permits;
pub mod plan;
pub mod prometheus;
pub mod script;
pub mod stalls;
pub mod wire;
pub mod world;

//! Helpers that several test files share.

pub mod acl;
pub mod black_hole;
pub mod door;
pub mod fixture;
pub mod fleet;
pub mod hear;
pub mod instance;
pub mod load;
pub mod oracle;
pub mod plan;
pub mod script;
pub mod stalls;
pub mod wire;
pub mod world;

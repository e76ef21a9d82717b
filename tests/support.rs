//! What several test files need.

pub mod door;
pub mod fixture;
pub mod instance;
pub mod oracle;
pub mod plan;
pub mod script;
pub mod world;

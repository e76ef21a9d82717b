//! In-flight limits for tests: their definition, random histories of processes, and the stores to compare.

mod adopt;
mod arguments;
pub mod bucket;
pub mod call;
pub mod lua;
pub mod memory;
pub mod oracle;
pub mod plan;
pub mod player;
pub mod process;
pub mod properties;
pub mod state;
mod stored;
mod sure_until;

//! Bans: their definition as an oracle, random sequences, and their run on the scripts and on the reference.

pub mod oracle;
pub mod plan;
pub mod player;
pub mod reference;
pub mod scripts;

//! The tower layer: what reaches the service, what clients are told, what is charged.

mod answers;
mod charging;
mod examples;
mod fixture;
mod fleet;
mod headers;
mod outage;
mod passing;
pub(crate) mod process;
#[cfg(feature = "rules")]
mod ruled;
mod vanishing;
mod waiting;

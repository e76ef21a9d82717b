//! The tower layer: which requests reach the service, how it responds to clients, and which requests it
//! charges.

mod answers;
mod charging;
mod examples;
mod fixture;
mod fleet;
mod headers;
mod outage;
mod passing;
pub(crate) mod process;

mod rules;
mod vanishing;
mod wait_permits;
mod waiting;

//! The tower layer: which requests reach the service, how it responds to clients, and which requests it
//! charges.

mod admitting;
mod answers;
mod bodies;
mod charging;
mod closed;
mod examples;
mod first_program;
pub(crate) mod fixture;
mod fleet;
mod gateway;
mod headers;
mod in_flight;
mod languages;
mod llm;
mod llm_budgets;
mod nested;
mod outage;
mod passing;
pub(crate) mod process;
mod quota_units;

mod rules;
mod setup;
mod straight;
mod streaming;
mod uploads;
mod vanishing;
mod wait_permits;
mod waiting;

//! The tower layer: what reaches the service, what clients are told, what is charged.

mod answers;
mod charging;
mod fixture;
mod headers;
mod passing;
mod vanishing;
mod waiting;

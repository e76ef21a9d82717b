//! The API under `/v1`.

mod checks;
mod examples;
pub mod fixture;
mod in_flight;
mod invented_gates;
mod malformed;
mod mistakes;
mod openapi;
mod redis;
mod releases;
mod reservations;
mod shadow;
mod validator;

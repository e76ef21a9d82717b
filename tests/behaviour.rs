//! The behavior of each algorithm and verb, with exact numbers, on every store.

mod algorithms;
mod groups;
mod overrides;
mod partial_grants;
mod reservations;
mod verbs;

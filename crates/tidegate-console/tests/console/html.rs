//! The pages over HTTP: status, escaping, size, changes.

mod changes;
pub mod fixture;
mod hostile;
mod pages;
mod sizes;

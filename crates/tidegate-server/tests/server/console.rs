//! The pages of the web console over HTTP: status, escaping, size, changes.

mod changes;
pub mod fixture;
mod hostile;
mod pages;
mod sizes;

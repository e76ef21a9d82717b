//! Model checks of tidegate's lock-free parts, by [loom](https://docs.rs/loom): see `CONTRIBUTING.md`.
//!
//! The files of production code are compiled here as they are, except that [`sync`] and [`store`] stand for
//! their `crate::sync` and `crate::store`. `build.rs` does so once for each variant: without a mistake, and with
//! each of `weakenings.rs`.

#![cfg(test)]

mod check;
mod store;
mod sync;

include!(concat!(env!("OUT_DIR"), "/variants.rs"));

// For rustfmt: `variants.rs` contains a copy of these for each variant.
#[cfg(false)]
mod circuits;
#[cfg(false)]
mod denials;
#[cfg(false)]
mod dispatchers;
#[cfg(false)]
mod lease_slot;
#[cfg(false)]
mod snapshot;

//! Models of tidegate's lock-free code, explored with [loom](https://docs.rs/loom): see `CONTRIBUTING.md`.
//!
//! This crate compiles the production files unchanged, with [`runtime::sync`] and [`store`] in place of their
//! `crate::runtime::sync` and `crate::store`. `build.rs` does so once per variant: without a bug, and with each bug of
//! `weakenings.rs`.

#![cfg(test)]

mod check;
mod runtime {
    pub(crate) mod sync;
}
mod store;

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

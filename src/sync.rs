//! The synchronization primitives of the files that `models` checks: there, this module provides those of a
//! model checker instead.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

//! Counts the allocations of this process.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The allocations of one request, by all threads of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Calls that allocate or reallocate.
    pub(crate) allocations: f64,
    pub(crate) bytes: f64,
}

/// Counts from its construction on.
pub(crate) struct Counter(Region<'static, System>);

impl Counter {
    pub(crate) fn start() -> Self {
        Self(Region::new(ALLOCATOR))
    }

    /// Returns the mean of this number of requests.
    pub(crate) fn per_request(&self, requests: u64) -> Count {
        let stats = self.0.change();
        let mean = |total: usize| total as f64 / requests as f64;
        Count {
            allocations: mean(stats.allocations + stats.reallocations),
            bytes: mean(stats.bytes_allocated),
        }
    }
}

//! What a process decides without Redis: from leases, cached denials, and while Redis is unavailable.

pub(crate) mod breaker;
pub(crate) mod deny_cache;
pub(crate) mod fallback;
pub(crate) mod lease;
pub(crate) mod on_failure;
pub(crate) mod overrides;

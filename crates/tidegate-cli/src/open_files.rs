//! The number of files and connections that this process may have open.

/// Raises the soft limit to the hard limit, as many servers and the runtime of Go do. The soft limit is often 1,024, for
/// programs that use `select`; each connection of a service needs one of them. If it cannot be raised, it stays. Returns the
/// limit, if there is one.
#[cfg(unix)]
pub(crate) fn raise_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // macOS rejects a limit above that of its kernel.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current
}

/// Does nothing: this system has no such limit.
#[cfg(not(unix))]
pub(crate) const fn raise_limit() -> Option<u64> {
    None
}

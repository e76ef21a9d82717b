use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

use crate::Error;

/// Servers that tests use one at a time. A server starts when none is idle, and all of them end with the
/// last of their users.
///
/// ```
/// use tidegate_testkit::{Pool, Server};
///
/// static SERVERS: Pool<Server> = Pool::new(8);
/// let server = SERVERS.get(|| Server::process(&[]))?;
/// assert_eq!(server.cli(&["PING"])?, "PONG");
/// # Ok::<(), tidegate_testkit::Error>(())
/// ```
#[derive(Debug)]
pub struct Pool<T> {
    capacity: usize,
    // Weak: a static is never dropped, so a container in it would outlive the tests.
    shared: Mutex<Weak<Shared<T>>>,
}

/// A server of a [`Pool`]. Dropping this value returns the server to the pool. After a panic the server ends
/// instead, since its state is unknown.
pub struct Pooled<T> {
    // `None` only in `drop`.
    server: Option<T>,
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    returned: Condvar,
}

#[derive(Debug)]
struct State<T> {
    idle: Vec<T>,
    in_use: usize,
}

impl<T> Pool<T> {
    /// Makes a pool of at most `capacity` servers.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, shared: Mutex::new(Weak::new()) }
    }

    /// Returns an idle server. Starts one if there is none, or blocks until one is returned if the pool is at
    /// its capacity.
    ///
    /// # Errors
    ///
    /// If `start` fails.
    pub fn get(&self, start: impl FnOnce() -> Result<T, Error>) -> Result<Pooled<T>, Error> {
        let shared = self.shared();
        let is_exhausted = |state: &mut State<T>| state.idle.is_empty() && state.in_use >= self.capacity;
        let state = shared.returned.wait_while(shared.lock(), is_exhausted);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.in_use += 1;
        let idle = state.idle.pop();
        drop(state);
        // Counts as in use from here on, even if `start` fails.
        let mut pooled = Pooled { server: None, shared };
        pooled.server = Some(idle.map_or_else(start, Ok)?);
        Ok(pooled)
    }

    fn shared(&self) -> Arc<Shared<T>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let state = Mutex::new(State { idle: Vec::new(), in_use: 0 });
            let new = Arc::new(Shared { state, returned: Condvar::new() });
            *shared = Arc::downgrade(&new);
            new
        })
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.server.as_ref().expect("only drop takes it")
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        let server = self.server.take();
        let mut state = self.shared.lock();
        state.in_use -= 1;
        let ended = match server {
            Some(server) if !thread::panicking() => {
                state.idle.push(server);
                None
            }
            server => server,
        };
        drop(state);
        self.shared.returned.notify_one();
        drop(ended);
    }
}

impl<T: fmt::Debug> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

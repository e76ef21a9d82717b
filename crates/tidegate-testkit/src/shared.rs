use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Cluster, Error, Server};

/// One server for all of its users at the same time.
struct Shared<T>(Mutex<Weak<T>>);

static SERVER: Shared<Server> = Shared::new();
static CLUSTER: Shared<Cluster> = Shared::new();

/// Returns the server that the tests of this executable share. It ends when its last user drops it, and the
/// next user gets a new one. Tests are isolated only by their keys.
///
/// # Panics
///
/// If no Redis is available, with the text of the [`Error`].
#[must_use]
pub fn shared() -> Arc<Server> {
    SERVER.get(Server::start)
}

/// Like [`shared`], for a [`Cluster`]. Its users must not change its nodes, slots or configuration. Its nodes
/// [do not fail over](Cluster::prevent_failover).
///
/// # Panics
///
/// If the cluster does not start, with the text of the [`Error`].
#[must_use]
pub fn shared_cluster() -> Arc<Cluster> {
    CLUSTER.get(|| {
        let cluster = Cluster::start()?;
        cluster.prevent_failover()?;
        Ok(cluster)
    })
}

impl<T> Shared<T> {
    const fn new() -> Self {
        // Weak: a static is never dropped, so a container in it would outlive the tests.
        Self(Mutex::new(Weak::new()))
    }

    fn get(&self, start: impl FnOnce() -> Result<T, Error>) -> Arc<T> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        match start() {
            Ok(server) => {
                let server = Arc::new(server);
                *shared = Arc::downgrade(&server);
                server
            }
            Err(error) => panic!("{error}"),
        }
    }
}

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Error, Server};

// Weak: what a static owns is never dropped, and a container would outlive the tests.
static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());

/// The server that the tests of this executable share. It ends with the last of its users; the
/// next one gets a new server, so nothing but isolation by key may be expected of it.
///
/// # Panics
///
/// If no Redis can be had, with the words of the [`Error`].
#[must_use]
pub fn shared() -> Arc<Server> {
    match get() {
        Ok(server) => server,
        Err(error) => panic!("{error}"),
    }
}

fn get() -> Result<Arc<Server>, Error> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = shared.upgrade() {
        return Ok(server);
    }
    let server = Arc::new(Server::start()?);
    *shared = Arc::downgrade(&server);
    Ok(server)
}

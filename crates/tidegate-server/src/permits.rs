//! The permits that clients of the HTTP API hold. Each lives in this process, which holds it on behalf of its client.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tidegate::{Limiter, Permits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::random::random_bytes;

/// The bytes of an id that name the server, and those that name a permit of it.
const SERVER_BYTES: usize = 4;
const PERMIT_BYTES: usize = 16;

type PermitId = [u8; PERMIT_BYTES];

/// The permits of all clients, bounded in number. A permit ends when it is released, or its time has passed.
pub(crate) struct PermitTable {
    server: [u8; SERVER_BYTES],
    limiter: Limiter,
    slots: Arc<Semaphore>,
    max: usize,
    held: Mutex<HashMap<PermitId, Held>>,
}

/// Permits that a client holds. Dropped: releases them in the background.
struct Held {
    permits: Permits,
    expiry: AbortHandle,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

/// Room for the permits of one client.
#[derive(Debug)]
pub(crate) struct PermitSlot(OwnedSemaphorePermit);

/// The reason why an id names no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPermit {
    /// The text is no id.
    Malformed,
    /// Another server gave it.
    OfAnotherServer,
    /// It was released before, or has expired.
    Ended,
}

impl PermitTable {
    /// Creates an empty table of `max` permits.
    pub(crate) fn new(limiter: Limiter, max: usize) -> Self {
        let mut server = [0; SERVER_BYTES];
        random_bytes(&mut server);
        let slots = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { server, limiter, slots, max, held: Mutex::default() }
    }

    /// Returns the maximum number of permits.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Takes room for a client's permits, if there is any.
    pub(crate) fn slot(&self) -> Option<PermitSlot> {
        self.slots.clone().try_acquire_owned().ok().map(PermitSlot)
    }

    /// Keeps permits until they are released, for at most `ttl` on the limiter's clock. Returns their id.
    pub(crate) fn keep(self: &Arc<Self>, slot: PermitSlot, permits: Permits, ttl: Duration) -> String {
        let mut id = [0; PERMIT_BYTES];
        random_bytes(&mut id);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // While the table is locked, so that a short time does not end before the permits are in it.
        let (table, limiter) = (Arc::downgrade(self), self.limiter.clone());
        let expiry = tokio::spawn(async move {
            limiter.sleep(ttl).await;
            Self::expire(&table, &id);
        });
        held.insert(id, Held { permits, expiry: expiry.abort_handle(), _slot: slot.0 });
        let mut text = String::with_capacity(2 * (SERVER_BYTES + PERMIT_BYTES));
        for byte in self.server.iter().chain(&id) {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    fn expire(table: &Weak<Self>, id: &PermitId) {
        let Some(table) = table.upgrade() else { return };
        let expired = table.held.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        // After the lock.
        drop(expired);
    }

    /// Removes the permits of an id, for a release.
    pub(crate) fn take(&self, text: &str) -> Result<Permits, NoPermit> {
        let bytes = parse(text).ok_or(NoPermit::Malformed)?;
        let (server, id) = bytes.split_at(SERVER_BYTES);
        if server != self.server {
            return Err(NoPermit::OfAnotherServer);
        }
        let id: PermitId = id.try_into().map_err(|_| NoPermit::Malformed)?;
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        held.map(|mut held| std::mem::take(&mut held.permits)).ok_or(NoPermit::Ended)
    }
}

fn parse(text: &str) -> Option<[u8; SERVER_BYTES + PERMIT_BYTES]> {
    let digits = text.as_bytes();
    let mut bytes = [0; SERVER_BYTES + PERMIT_BYTES];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).filter(|_| !pair[at].is_ascii_uppercase());
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(bytes)
}

/// Shows no id: a client that knows one can release the permit.
impl fmt::Debug for PermitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitTable").field("max", &self.max).finish_non_exhaustive()
    }
}

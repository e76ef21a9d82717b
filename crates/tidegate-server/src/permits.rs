//! The permits that clients of the HTTP API hold. Each lives in this process, which holds it on behalf of its client.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::admin::ReleaseInbox;
use tidegate::{Error, Limiter, Permits};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::random::random_bytes;

/// How often a server collects the releases that others have received.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// The permits of all clients, bounded in number. A permit ends when it is released, or its time has passed.
///
/// An id is the number of the server, and that of a permit of it: 4 and 16 random bytes. A server that receives the
/// release of a permit of another one records it in the other's inbox.
pub(crate) struct PermitTable {
    server: u32,
    limiter: Limiter,
    slots: Arc<Semaphore>,
    max: usize,
    held: Mutex<HashMap<u128, Held>>,
    /// Set once the first call for the inbox has ended, before the first id is given to a client.
    inbox: OnceCell<()>,
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

/// The reason why a permit was not released.
#[derive(Debug)]
pub(crate) enum NotReleased {
    /// The text is no id.
    Malformed,
    /// It was released before, or has expired, or its server has ended.
    Ended,
    /// The server that holds it could not be told.
    NotRecorded(Error),
}

impl PermitTable {
    /// Creates an empty table of `max` permits.
    pub(crate) fn new(limiter: Limiter, max: usize) -> Self {
        let mut server = [0; 4];
        random_bytes(&mut server);
        let slots = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        let server = u32::from_ne_bytes(server);
        Self { server, limiter, slots, max, held: Mutex::default(), inbox: OnceCell::new() }
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
    pub(crate) async fn keep(self: &Arc<Self>, slot: PermitSlot, permits: Permits, ttl: Duration) -> String {
        self.inbox.get_or_init(|| self.open_inbox()).await;
        let mut id = [0; 16];
        random_bytes(&mut id);
        let id = u128::from_ne_bytes(id);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // While the table is locked, so that a short time does not end before the permits are in it.
        let (table, limiter) = (Arc::downgrade(self), self.limiter.clone());
        let expiry = tokio::spawn(async move {
            limiter.sleep(ttl).await;
            drop(table.upgrade().and_then(|table| table.remove(id)));
        });
        held.insert(id, Held { permits, expiry: expiry.abort_handle(), _slot: slot.0 });
        format!("{:08x}{id:032x}", self.server)
    }

    /// Opens the inbox, and collects releases until the table is dropped. Where the first call fails, the next one opens
    /// it: until then, other servers do not know its permits.
    async fn open_inbox(self: &Arc<Self>) {
        // A limiter in memory shares its permits with no other server.
        let Ok(mut inbox) = ReleaseInbox::new(&self.limiter, self.server) else { return };
        let _ = inbox.collect().await;
        let (table, limiter) = (Arc::downgrade(self), self.limiter.clone());
        tokio::spawn(async move {
            loop {
                limiter.sleep(COLLECT_EVERY).await;
                let released = inbox.collect().await.unwrap_or_default();
                let Some(table) = table.upgrade() else { return };
                for id in released {
                    drop(table.remove(id));
                }
            }
        });
    }

    fn remove(&self, id: u128) -> Option<Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    /// Releases the permits of an id, or records for their server that they are. Returns whether the store has confirmed
    /// that their units are free.
    pub(crate) async fn release(&self, text: &str) -> Result<bool, NotReleased> {
        let (server, id) = parse(text).ok_or(NotReleased::Malformed)?;
        if server == self.server {
            let mut held = self.remove(id).ok_or(NotReleased::Ended)?;
            // An error means that the units are released in the background.
            return Ok(std::mem::take(&mut held.permits).release().await.is_ok());
        }
        let Ok(inbox) = ReleaseInbox::new(&self.limiter, server) else { return Err(NotReleased::Ended) };
        match inbox.record(id).await.map_err(NotReleased::NotRecorded)? {
            true => Ok(false),
            false => Err(NotReleased::Ended),
        }
    }
}

/// Returns the numbers of the server and of the permit.
fn parse(text: &str) -> Option<(u32, u128)> {
    let is_id = text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let (server, permit) = is_id.then(|| text.split_at(8))?;
    Some((u32::from_str_radix(server, 16).ok()?, u128::from_str_radix(permit, 16).ok()?))
}

/// Shows no id: a client that knows one can release the permit.
impl fmt::Debug for PermitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitTable").field("max", &self.max).finish_non_exhaustive()
    }
}

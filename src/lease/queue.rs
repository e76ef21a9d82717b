//! What spenders ask of the keeper, bounded.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// Beyond it a request is dropped; the next ask of that key makes another.
const MOST: usize = 8_192;

#[derive(Debug)]
pub(super) enum Request {
    /// A key without a lease is asked for often.
    Begin { key: Box<[u8]>, cost: u32 },
    /// A lease runs low, or had too little for an ask of this cost.
    Refill { slot: u32, cost: u32 },
}

/// In cache lines of its own: what spenders read beside it stays in theirs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Queue {
    requests: Mutex<Vec<Request>>,
    wake: Notify,
}

impl Queue {
    /// Whether there was room.
    pub(super) fn push(&self, request: Request) -> bool {
        let was = {
            let mut requests = self.lock();
            if requests.len() >= MOST {
                return false;
            }
            requests.push(request);
            requests.len() - 1
        };
        // Who takes one takes all.
        if was == 0 {
            self.wake.notify_one();
        }
        true
    }

    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.lock())
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The bounded queue of spenders' requests to the worker.

use tokio::sync::Notify;

use super::leased_key::EncodedKey;
use super::packed_key::PackedKey;
use crate::runtime::sync::{Mutex, lock};

/// The maximum number of queued requests. Further requests are dropped; the next check of the key makes
/// another.
const MAX_REQUESTS: usize = 8_192;

#[derive(Debug)]
pub(super) enum LeaseRequest {
    /// A key without a lease is checked often.
    Begin { key: EncodedKey, packed: PackedKey, cost: u32 },
    /// A lease runs low, or had too few units for a check of this cost.
    Refill { slot: u32, cost: u32 },
}

/// Aligned to cache lines of its own, so that writes here do not evict neighboring fields that spenders read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct RequestQueue {
    requests: Mutex<Vec<LeaseRequest>>,
    wake: Notify,
}

impl RequestQueue {
    /// Returns false if the queue is full.
    pub(super) fn push(&self, request: LeaseRequest) -> bool {
        let queued_before = {
            let mut requests = lock(&self.requests);
            if requests.len() >= MAX_REQUESTS {
                return false;
            }
            requests.push(request);
            requests.len() - 1
        };
        // Notifies only for the first request: the worker takes all of them at once.
        if queued_before == 0 {
            self.wake.notify_one();
        }
        true
    }

    pub(super) fn take(&self) -> Vec<LeaseRequest> {
        std::mem::take(&mut *lock(&self.requests))
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

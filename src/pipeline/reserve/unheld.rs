//! Charges of reservations that this process decided while Redis was unavailable. The store holds none of them, so
//! this process remembers them until they are settled.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::decision::Decision;
use crate::local::fallback::ReconcileStamp;
use crate::pipeline::request::Request;
use crate::runtime::sync::{Mutex, lock};

/// The maximum number of reservations whose charges are remembered.
const MAX_RESERVATIONS: usize = 16_384;

/// A check of such a reservation.
pub(crate) struct UnheldCharge {
    /// The index of the check in the reservation.
    pub(crate) index: usize,
    pub(crate) request: Request<'static>,
    pub(crate) decision: Decision,
    pub(crate) stamp: Option<ReconcileStamp>,
}

/// The charges by the id of their reservation. Each is settled at most once.
pub(crate) struct UnheldCharges {
    /// By this number the limiter recognizes its tokens.
    pub(crate) issuer: u32,
    remembered: Mutex<HashMap<[u8; 12], Remembered>>,
}

/// The charges of a reservation.
pub(crate) struct Remembered {
    /// Then the token is no longer settled.
    until: Instant,
    pub(crate) charges: Vec<UnheldCharge>,
}

impl Default for UnheldCharges {
    fn default() -> Self {
        Self { issuer: fastrand::u32(..), remembered: Mutex::default() }
    }
}

impl UnheldCharges {
    /// Remembers the charges of a reservation. If there are too many, forgets them, so that they stay as they are.
    pub(crate) fn insert(&self, id: [u8; 12], charges: Vec<UnheldCharge>, ttl: Duration) {
        let mut remembered = lock(&self.remembered);
        let now = Instant::now();
        if remembered.len() >= MAX_RESERVATIONS {
            remembered.retain(|_, entry| entry.until > now);
        }
        if remembered.len() < MAX_RESERVATIONS {
            remembered.insert(id, Remembered { until: now + ttl, charges });
        }
    }

    /// Removes the charges of a reservation, so that only one settle finds them.
    pub(crate) fn remove(&self, id: [u8; 12]) -> Option<Remembered> {
        lock(&self.remembered).remove(&id).filter(|entry| entry.until > Instant::now())
    }

    /// Remembers again the charges that a settle has removed and could not settle, until their first end.
    pub(crate) fn restore(&self, id: [u8; 12], entry: Remembered) {
        let mut remembered = lock(&self.remembered);
        if remembered.len() < MAX_RESERVATIONS {
            remembered.entry(id).or_insert(entry);
        }
    }
}

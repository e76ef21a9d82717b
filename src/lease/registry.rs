//! The leased gates of one limiter, which end with it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use super::shared::{Leases, LeasesInner};

/// Weak references: gates end when they are dropped. A gate whose worker still gives units back stays listed
/// until the worker has finished.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<Vec<Weak<LeasesInner>>>);

impl Registry {
    pub(crate) fn add(&self, leases: &Leases) {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(leases.shared()));
    }

    /// Gives all leases back, at most until `ends`.
    pub(crate) async fn end(&self, ends: Instant) {
        let gates = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let gates: Vec<_> = gates.iter().filter_map(Weak::upgrade).collect();
        gates.iter().for_each(|gate| gate.begin_shutdown());
        for gate in gates {
            gate.end(ends).await;
        }
    }
}

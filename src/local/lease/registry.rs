//! The leased gates of one limiter, which end with it.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::leases::Leases;
use super::shared::LeasesInner;
use crate::runtime::sync::{Mutex, lock};

/// Weak references: gates end when they are dropped. A gate whose worker still gives units back stays listed
/// until the worker has finished.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<Vec<Weak<LeasesInner>>>);

impl Registry {
    pub(crate) fn add(&self, leases: &Leases) {
        let mut gates = lock(&self.0);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(leases.shared()));
    }

    /// Gives all leases back, at most until `ends`.
    pub(crate) async fn end(&self, ends: Instant) {
        let gates = std::mem::take(&mut *lock(&self.0));
        let gates: Vec<_> = gates.iter().filter_map(Weak::upgrade).collect();
        gates.iter().for_each(|gate| gate.begin_shutdown());
        for gate in gates {
            gate.end(ends).await;
        }
    }
}

//! The leased gates of one limiter, to be ended with it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use super::shared::{Leases, Shared};

/// Weak: gates end by themselves when they are dropped. What a worker still
/// gives back after that keeps its place here until it is done.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<Vec<Weak<Shared>>>);

impl Registry {
    pub(crate) fn add(&self, leases: &Leases) {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(leases.shared()));
    }

    /// Gives back all that is leased, at most until `ends`.
    pub(crate) async fn end(&self, ends: Instant) {
        let gates = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let gates: Vec<_> = gates.iter().filter_map(Weak::upgrade).collect();
        gates.iter().for_each(|gate| gate.begin_to_end());
        for gate in gates {
            gate.end(ends).await;
        }
    }
}

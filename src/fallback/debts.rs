//! What was admitted here is charged to the store, once it answers again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};

use super::Shared;
use crate::connection::Deadline;
use crate::store::Write;

/// Charges under way at once: a round trip each.
const AT_ONCE: usize = 64;
/// Before charges are sent: what fails together is charged together.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether somebody sees to it. He ends with his runtime; then the next who is
/// admitted here begins anew.
#[derive(Default)]
pub(super) struct Task(AtomicBool);

pub(super) fn begin(shared: &Arc<Shared>) {
    let is_there = &shared.debts.0;
    if is_there.load(Ordering::Relaxed) || is_there.swap(true, Ordering::AcqRel) {
        return;
    }
    // Only looks at the limiter: what is dropped owes nothing.
    let charging = Charging { shared: Arc::downgrade(shared), has_ended: false };
    tokio::spawn(charging.run());
}

struct Charging {
    shared: Weak<Shared>,
    has_ended: bool,
}

impl Charging {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(PAUSE.mul_f64(1.0 + fastrand::f64())).await;
            let shared = self.shared.upgrade().filter(|shared| !shared.breaker.is_over());
            let Some(shared) = shared else { return };
            if shared.breaker.open_for().is_none() && shared.breaker.is_answered().await {
                shared.charge().await;
                self.has_ended = shared.end();
                if self.has_ended {
                    return;
                }
            }
        }
    }
}

impl Drop for Charging {
    fn drop(&mut self) {
        // Where it has ended another may have begun.
        if let Some(shared) = self.shared.upgrade().filter(|_| !self.has_ended) {
            shared.debts.0.store(false, Ordering::Release);
        }
    }
}

impl Shared {
    /// All that is owed. What is not answered stays owed and is charged again: it
    /// may have been done, which admits too few.
    async fn charge(&self) {
        let owed = self.table.owed(self.clock.now_us());
        let charges = owed.into_iter().map(|(target, units)| async move {
            let charge = Write::Penalize { units };
            let charged = self.store.write(&target, charge, Deadline::new(self.deadline)).await;
            if let (Err(error), Some(observer)) = (&charged, &self.observer) {
                observer.failed(&target.gate.name, error);
            }
            // What is refused now would be for ever.
            if !charged.is_err_and(|error| error.is_unanswered()) {
                self.table.settle(&target, units, self.clock.now_us());
            }
        });
        stream::iter(charges).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// Whether nothing came in the meantime.
    fn end(&self) -> bool {
        self.debts.0.store(false, Ordering::Release);
        self.table.len() == 0 || self.debts.0.swap(true, Ordering::AcqRel)
    }
}

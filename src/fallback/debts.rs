//! What was admitted here is charged to the store, once it answers again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use super::Shared;
use crate::algorithm::Record;
use crate::connection::Deadline;
use crate::quota::Quota;
use crate::store::{Target, Write};

/// Charges under way at once: a round trip each.
const AT_ONCE: usize = 64;
/// Before charges are sent: what fails together is charged together. Doubled
/// as long as none is taken.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

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
        let mut pause = PAUSE;
        loop {
            tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64())).await;
            let shared = self.shared.upgrade().filter(|shared| !shared.breaker.is_over());
            let Some(shared) = shared else { return };
            if shared.breaker.open_for().is_none() && shared.breaker.is_answered().await {
                pause = if shared.charge().await { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
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
    /// All that is owed; whether any of it was taken. What is not answered, or
    /// refused (no memory, a replica), stays owed and is charged again: it may have
    /// been done, which admits too few; forgotten, each failing ask after it would
    /// begin with a whole share.
    async fn charge(&self) -> bool {
        let owed = self.table.owed(self.clock.now_us());
        let mut is_any_taken = owed.is_empty();
        for owed in owed.chunks(AT_ONCE) {
            let charges = owed.iter().map(|(target, units)| self.charge_one(target, *units));
            let taken = join_all(charges).await.contains(&true);
            is_any_taken |= taken;
            if !taken {
                // The others would fare no better.
                break;
            }
        }
        is_any_taken
    }

    async fn charge_one(&self, target: &Target, units: u64) -> bool {
        let deadline = Deadline::new(self.deadline);
        let charged = self.store.write(target, Write::Penalize { units }, deadline).await;
        if let (Err(error), Some(observer)) = (&charged, &self.observer) {
            observer.failed(&target.gate.name, error);
        }
        // What the key holds is none of ours: no charge will ever be taken.
        let is_done = charged.is_ok() || charged.is_err_and(|error| error.is_corrupt_state());
        if is_done {
            let note =
                |share: &Quota, record: &Record| self.seen.note_record(target, share, record, &self.clock);
            self.table.settle(target, units, self.clock.now_us(), note);
        }
        is_done
    }

    /// Whether nothing came in the meantime.
    fn end(&self) -> bool {
        self.debts.0.store(false, Ordering::Release);
        self.table.len() == 0 || self.debts.0.swap(true, Ordering::AcqRel)
    }
}

//! Reconciling: after an outage, the store is charged for units that the fallback admitted.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::FallbackInner;
use crate::background::{Job, JobSlot};
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::HashTag;
use crate::store::{Target, Write};

/// Charges in flight for one hash tag: one round trip each.
const MAX_IN_FLIGHT: usize = 64;
/// The pause before a round of charges, so that keys that fail together are charged together. Doubled while
/// no charge succeeds.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// For how long a shutdown retries while no charge succeeds.
const MAX_STALL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Reconciliation {
    job: JobSlot,
    /// One round at a time: two would charge the same units twice.
    round: tokio::sync::Mutex<()>,
}

/// Starts the job that charges the store, unless it is running. Called after the fallback has
/// admitted something.
pub(super) fn ensure_started(shared: &Arc<FallbackInner>) {
    let reconciling = || Reconciling(Arc::downgrade(shared));
    shared.reconciliation.job.ensure_running(&shared.background, reconciling);
}

/// Runs rounds until nothing is left to charge. Does not keep the limiter alive.
struct Reconciling(Weak<FallbackInner>);

impl Reconciling {
    fn shared(&self) -> Option<Arc<FallbackInner>> {
        self.0.upgrade().filter(|shared| !shared.breaker.is_shut_down())
    }
}

impl Job for Reconciling {
    async fn run(&self) {
        let mut pause = MIN_PAUSE;
        loop {
            tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64())).await;
            let Some(shared) = self.shared() else { return };
            if shared.breaker.are_all_open() {
                continue;
            }
            // An open circuit is probed by the breaker, not by charges.
            pause = match shared.charge_round(|tag| !shared.breaker.is_open(tag)).await {
                Round::Charged => MIN_PAUSE,
                Round::Stalled => (pause * 2).min(MAX_PAUSE),
            };
            if shared.table.len() == 0 {
                return;
            }
        }
    }

    fn is_needed(&self) -> bool {
        self.shared().is_some_and(|shared| shared.table.len() > 0)
    }
}

/// The result of a round of charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Round {
    /// No charge succeeded.
    Stalled,
    /// Some charges succeeded.
    Charged,
}

impl FallbackInner {
    /// Charges until nothing is left, at most until `ends`, and not for longer than a second while
    /// Redis does not answer. Reports the units of each gate that could not be charged.
    pub(super) async fn reconcile_before_shutdown(&self, ends: Instant) {
        let mut progress = Instant::now();
        while self.table.len() > 0 {
            let stalls = ends.min(progress + MAX_STALL);
            match tokio::time::timeout_at(stalls, self.charge_round(|_| true)).await {
                Ok(Round::Charged) => progress = Instant::now(),
                Ok(_) => tokio::time::sleep(MIN_PAUSE).await,
                Err(_) => break,
            }
            if Instant::now() >= stalls {
                break;
            }
        }
        let mut uncharged = BTreeMap::<_, u64>::new();
        for (target, units) in self.table.uncharged(self.clock.now_us(), |_| true) {
            *uncharged.entry(target.gate.name.to_string()).or_default() += units;
        }
        if let Some(observer) = &self.observer {
            for (gate, units) in uncharged {
                observer.failed(&gate, &Error::unreconciled(units));
            }
        }
    }

    /// Charges the keys of each hash tag for which `may_send` holds. Hash tags do not wait for each
    /// other, so a node that is away does not hold up the others.
    async fn charge_round(&self, may_send: impl Fn(HashTag) -> bool) -> Round {
        let _alone = self.reconciliation.round.lock().await;
        let mut tags = BTreeMap::<usize, Vec<_>>::new();
        for (target, units) in self.table.uncharged(self.clock.now_us(), may_send) {
            tags.entry(target.hash_tag.index()).or_default().push((target, units));
        }
        let rounds = join_all(tags.values().map(|uncharged| self.charge_tag(uncharged))).await;
        rounds.into_iter().max().unwrap_or(Round::Stalled)
    }

    /// Charges one hash tag's keys. A charge that is not answered or that is rejected (no memory, a replica)
    /// stays pending and is sent again. It may have been applied, which admits too few; forgetting it would
    /// let each failing check start with a whole share.
    async fn charge_tag(&self, uncharged: &[(Target, u64)]) -> Round {
        let is_answered = match uncharged.first() {
            Some((target, _)) => self.breaker.is_answered(target.hash_tag).await,
            None => false,
        };
        let mut round = Round::Stalled;
        for uncharged in uncharged.chunks(MAX_IN_FLIGHT) {
            if !is_answered {
                break;
            }
            let charges = uncharged.iter().map(|(target, units)| self.charge(target, *units));
            if !join_all(charges).await.contains(&true) {
                // The remaining charges would fail as well.
                break;
            }
            round = Round::Charged;
        }
        round
    }

    async fn charge(&self, target: &Target, units: u64) -> bool {
        let deadline = Deadline::new(self.deadline);
        let charged = self.store.write(target, Write::Penalize { units }, deadline).await;
        if let (Err(error), Some(observer)) = (&charged, &self.observer) {
            observer.failed(&target.gate.name, error);
        }
        let charged_us = charged.as_ref().ok().copied();
        // A corrupt key never takes a charge.
        let is_done = charged.is_ok() || charged.is_err_and(|error| error.is_corrupt_state());
        if is_done {
            self.settle(target, units, charged_us).await;
        }
        is_done
    }
}

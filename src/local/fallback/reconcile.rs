//! Reconciling: after an outage, sends the units that the fallback admitted to the store, as penalties.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::FallbackInner;
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::HashTag;
use crate::observe::observer::Event;
use crate::runtime::background::Job;
use crate::store::{Target, Write};

/// Keys of one hash tag whose units are in flight at a time: one round trip each.
const MAX_IN_FLIGHT: usize = 64;
/// The pause before a round, so that keys that fail together are reconciled together. Doubled while no key is
/// reconciled.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// For how long a shutdown retries while no key is reconciled.
const MAX_STALL: Duration = Duration::from_secs(1);

/// Starts the job that reconciles, unless it is running. Called after each decision of the fallback: the job also
/// removes the keys that it only denied, so that they start the next outage from the state that is known by then.
pub(super) fn ensure_running(shared: &Arc<FallbackInner>) {
    let reconciling = || Reconciling(Arc::downgrade(shared));
    shared.reconciling.ensure_running(&shared.background, reconciling);
}

/// Runs rounds until nothing is left to reconcile. Does not keep the limiter alive.
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
            // An open circuit is probed by the breaker, not by reconciling.
            pause = match shared.reconcile_round(|tag| !shared.breaker.is_open(tag)).await {
                ReconcileRound::Progressed => MIN_PAUSE,
                ReconcileRound::Stalled => (pause * 2).min(MAX_PAUSE),
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

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReconcileRound {
    /// No key was reconciled.
    Stalled,
    /// Some keys were reconciled.
    Progressed,
}

impl FallbackInner {
    /// Reconciles until nothing is left, at most until `ends`, and not for longer than a second while Redis
    /// does not answer. Reports the units of each gate that could not be reconciled.
    pub(super) async fn reconcile_before_shutdown(&self, ends: Instant) {
        let mut progress = Instant::now();
        while self.table.len() > 0 {
            let stalls = ends.min(progress + MAX_STALL);
            match tokio::time::timeout_at(stalls, self.reconcile_round(|_| true)).await {
                Ok(ReconcileRound::Progressed) => progress = Instant::now(),
                Ok(_) => tokio::time::sleep(MIN_PAUSE).await,
                Err(_) => break,
            }
            if Instant::now() >= stalls {
                break;
            }
        }
        let mut unreconciled = BTreeMap::<_, u64>::new();
        for (target, units) in self.table.unreconciled(self.clock.now_us(), |_| true) {
            *unreconciled.entry(target.gate.name.to_string()).or_default() += units;
        }
        for (gate, units) in unreconciled {
            self.events.notify(&Event::Failed { gate: &gate, error: &Error::unreconciled(units) });
        }
    }

    /// Reconciles the keys of each hash tag for which `may_send` holds. Hash tags do not wait for each
    /// other, so a node that is away does not hold up the others.
    async fn reconcile_round(&self, may_send: impl Fn(HashTag) -> bool) -> ReconcileRound {
        let _alone = self.round.lock().await;
        let mut tags = BTreeMap::<usize, Vec<_>>::new();
        for (target, units) in self.table.unreconciled(self.clock.now_us(), may_send) {
            tags.entry(target.hash_tag.index()).or_default().push((target, units));
        }
        let rounds = join_all(tags.values().map(|unreconciled| self.reconcile_tag(unreconciled))).await;
        rounds.into_iter().max().unwrap_or(ReconcileRound::Stalled)
    }

    /// Reconciles one hash tag's keys. Units whose penalty is not answered or is rejected (no memory, a
    /// replica) stay pending and are sent again. They may have been charged, which admits too few; forgetting
    /// them would let each failing check start with a whole share.
    async fn reconcile_tag(&self, unreconciled: &[(Target, u64)]) -> ReconcileRound {
        let is_answered = match unreconciled.first() {
            Some((target, _)) => self.breaker.is_answered(target.hash_tag).await,
            None => false,
        };
        let mut round = ReconcileRound::Stalled;
        for chunk in unreconciled.chunks(MAX_IN_FLIGHT) {
            if !is_answered {
                break;
            }
            let keys = chunk.iter().map(|(target, units)| self.reconcile_key(target, *units));
            if !join_all(keys).await.contains(&true) {
                // The remaining keys would fail as well.
                break;
            }
            round = ReconcileRound::Progressed;
        }
        round
    }

    /// Returns whether the key is done.
    async fn reconcile_key(&self, target: &Target, units: u64) -> bool {
        let deadline = Deadline::new(self.deadline);
        let written = self.store.write(target, Write::Penalize { units }, deadline).await;
        if let Err(error) = &written {
            self.events.notify(&Event::Failed { gate: &target.gate.name, error });
        }
        let store_stamp_us = written.as_ref().ok().map(|written| written.stamp_us);
        // A corrupt key never accepts them.
        let is_done = written.is_ok() || written.is_err_and(|error| error.is_corrupt_state());
        if is_done {
            self.settle(target, units, store_stamp_us).await;
        }
        is_done
    }
}

//! Decides while the store is unavailable: within this process's share of the quota, starting from the last
//! known state. Reconciles afterwards: sends the units that it admitted to the store.
//!
//! So a fleet of I instances admits at most I shares more than the quota for each outage.

mod heartbeat;
mod last_known;
mod reconcile;
mod table;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Mutex;
use tokio::time::Instant;

pub(crate) use self::heartbeat::{Instances, Publisher};
use self::last_known::LastKnown;
pub(crate) use self::table::ReconcileStamp;
use self::table::{LimitPart, LocalTable};
use super::breaker::Breaker;
use crate::connection::Deadline;
use crate::decision::Decision;
use crate::observe::observer::EventSink;
use crate::observe::warning::{RepeatedWarning, WarningSink};
use crate::quota::Quota;
use crate::quota::reference::{Answer, Before, Record};
use crate::runtime::background::{Background, JobSlot};
use crate::runtime::clock::Clock;
use crate::store::{GroupItem, Store, Target, UsedCharge, Write};

#[derive(Clone)]
pub(crate) struct Fallback(Arc<FallbackInner>);

/// The settings of a fallback.
pub(crate) struct FallbackSettings {
    pub(crate) store: Arc<Store>,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) clock: Clock,
    pub(crate) deadline: Duration,
    pub(crate) events: EventSink,
    pub(crate) warnings: WarningSink,
    pub(crate) instances: Instances,
    pub(crate) max_keys: usize,
    /// `None`: this process publishes no figures.
    pub(crate) publisher: Option<Publisher>,
    pub(crate) background: Arc<Background>,
}

impl Fallback {
    pub(crate) fn new(settings: FallbackSettings) -> Self {
        let FallbackSettings {
            store,
            breaker,
            clock,
            deadline,
            events,
            warnings,
            instances,
            max_keys,
            publisher,
            background,
        } = settings;
        Self(Arc::new(FallbackInner {
            store,
            breaker,
            clock,
            deadline,
            events,
            warnings,
            heartbeat_rejected: RepeatedWarning::new("heartbeat-rejected"),
            heartbeat_unanswered: RepeatedWarning::new("heartbeat-unanswered"),
            instances,
            publisher,
            last_known: LastKnown::new(max_keys),
            table: LocalTable::new(max_keys),
            background,
            heartbeats: JobSlot::default(),
            reconciling: JobSlot::default(),
            round: Mutex::default(),
        }))
    }

    /// Starts the heartbeats by which instances count each other and publish their figures, unless they are running.
    #[inline]
    pub(crate) fn ensure_counted(&self) {
        heartbeat::ensure_running(&self.0);
    }

    /// Reconciles the units admitted here, before a shutdown.
    pub(crate) async fn reconcile_before_shutdown(&self, ends: Instant) {
        self.0.reconcile_before_shutdown(ends).await;
    }

    /// Publishes the last figures, before a shutdown.
    pub(crate) async fn publish_last(&self, ends: Instant) {
        // A call that is not answered in time stays without effect for the shutdown.
        let _ = tokio::time::timeout_at(ends, self.0.publish(true)).await;
    }

    /// Returns the last known number of processes.
    pub(crate) fn instances(&self) -> u64 {
        self.0.instances.known()
    }

    /// Returns whether the state after this decision is worth [noting](Self::note).
    #[inline]
    pub(crate) fn is_worth_noting(decision: &Decision) -> bool {
        last_known::is_worth_noting(decision)
    }

    /// Returns whether a state of any key in this slot of the deny cache may be noted.
    #[inline]
    pub(crate) fn may_know(&self, slot: usize) -> bool {
        self.0.last_known.may_know(slot, &self.0.clock)
    }

    /// Notes the state after a decision of the store, for the fallback to start from; or, if that is not worth it,
    /// removes an earlier one.
    pub(crate) fn note(&self, target: &Target, decision: &Decision, before: &Before) {
        self.0.last_known.note(target, decision, before, &self.0.clock);
    }

    /// Called after the store has accepted a write.
    pub(crate) fn note_write(&self, target: &Target, write: Write) {
        self.0.last_known.note_write(target, write);
    }

    /// Decides `n` times a group within this process's shares, all or nothing.
    pub(crate) fn take(&self, items: &[GroupItem], n: u64) -> LocalOutcome {
        let shared = &self.0;
        let instances = shared.instances.known();
        let parts: SmallVec<[LimitPart<'_>; 1]> =
            items.iter().map(|item| LimitPart::new(item, instances)).collect();
        // Such a group is denied, so it charges nothing and only computes the wait.
        let n = if parts.iter().any(|part| part.is_above_share) { 0 } else { n };
        let now_us = shared.clock.now_us();
        let warm = |target: &Target, share: &Quota| shared.last_known.record(target, share, now_us);
        let outcome = shared.table.take(&parts, n, now_us, warm);
        let granted = outcome.k;
        reconcile::ensure_running(shared);
        let answer =
            |(at, part): (usize, &LimitPart<'_>)| (part.answer(n, at, &outcome), part.stamp_us(at, &outcome));
        let answers = parts.iter().enumerate().map(answer).collect();
        LocalOutcome { granted, answers, now_us }
    }
}

/// # Units that were used
impl Fallback {
    /// Charges units that were used to this process's share of the quota, whatever the state, as far as at most `most_of`
    /// the share are used afterwards. Returns the share, too.
    pub(crate) fn charge_used(
        &self,
        target: &Target,
        units: u64,
        most_of: impl Fn(&Quota) -> u64,
    ) -> (Quota, UsedCharge) {
        let (shared, now_us) = (&self.0, self.0.clock.now_us());
        let share = target.gate.share(shared.instances.known());
        let warm = |target: &Target, share: &Quota| shared.last_known.record(target, share, now_us);
        let charged = shared.table.charge_used(target, &share, [units, most_of(&share)], now_us, warm);
        reconcile::ensure_running(shared);
        (share, charged)
    }
}

/// # Reservations that the fallback admitted
impl Fallback {
    /// Returns the stamp by which units that were just admitted can be given back.
    pub(crate) fn stamp(&self, target: &Target) -> Option<ReconcileStamp> {
        self.0.table.stamp(target)
    }

    /// Gives back units that were admitted here with the stamp `admitted_us`. Returns the store's stamp for
    /// them, if they were reconciled: then they have to be given back there.
    pub(crate) fn give_back(
        &self,
        target: &Target,
        stamp: &ReconcileStamp,
        units: u64,
        admitted_us: u64,
    ) -> Option<u64> {
        self.0.table.give_back(target, stamp, units, admitted_us, self.0.clock.now_us())
    }
}

/// The fallback's decision on a group.
pub(crate) struct LocalOutcome {
    /// How often all of it was admitted and charged; 0 for a peek.
    pub(crate) granted: u64,
    /// One for each item, with the stamp by which its units are given back.
    pub(crate) answers: SmallVec<[(Answer, u64); 1]>,
    /// This process's clock, µs since 1970.
    pub(crate) now_us: u64,
}

impl std::fmt::Debug for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fallback")
            .field("instances", &self.0.instances.known())
            .field("keys", &self.0.table.len())
            .finish_non_exhaustive()
    }
}

// The state of a fallback, which its callers and background jobs share.

struct FallbackInner {
    store: Arc<Store>,
    breaker: Arc<Breaker>,
    clock: Clock,
    deadline: Duration,
    events: EventSink,
    warnings: WarningSink,
    heartbeat_rejected: RepeatedWarning,
    heartbeat_unanswered: RepeatedWarning,
    instances: Instances,
    publisher: Option<Publisher>,
    last_known: LastKnown,
    table: LocalTable,
    background: Arc<Background>,
    heartbeats: JobSlot,
    reconciling: JobSlot,
    /// One round of reconciling at a time: two would charge the same units twice.
    round: Mutex<()>,
}

impl FallbackInner {
    /// Called when the store accepted `units` with the stamp `store_stamp_us`, or will never accept them
    /// (`None`).
    async fn settle(&self, target: &Target, units: u64, store_stamp_us: Option<u64>) {
        let note =
            |share: &Quota, record: &Record| self.last_known.note_record(target, share, record, &self.clock);
        let excess = self.table.settle(target, units, store_stamp_us, self.clock.now_us(), note);
        if excess > 0 {
            let give_back = Write::Refund { units: excess, stamp_us: store_stamp_us };
            // A lost refund admits too few.
            let _ = self.store.write(target, give_back, Deadline::new(self.deadline)).await;
        }
    }
}

//! Decides while the store is unavailable: within this process's share of the quota, starting from the
//! last known state, and charges the store afterwards for what it admitted.
//!
//! So a fleet of I admits at most I shares more than the quota for each outage.

mod instances;
mod part;
mod reconcile;
mod seen;
mod table;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

pub(crate) use self::instances::Instances;
use self::part::Part;
use self::seen::LastSeen;
use self::table::Table;
use crate::algorithm::{Answer, Before};
use crate::background::Background;
use crate::breaker::Breaker;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::observer::Observer;
use crate::quota::Quota;
use crate::store::{Item, Store, Target};

#[derive(Clone)]
pub(crate) struct Fallback(Arc<Shared>);

struct Shared {
    store: Arc<Store>,
    breaker: Arc<Breaker>,
    clock: Clock,
    deadline: Duration,
    observer: Option<Arc<dyn Observer>>,
    instances: Instances,
    seen: LastSeen,
    table: Table,
    background: Arc<Background>,
    reconciliation: reconcile::Reconciliation,
}

/// The settings of a fallback.
pub(crate) struct Settings {
    pub(crate) store: Arc<Store>,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) clock: Clock,
    pub(crate) deadline: Duration,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) instances: Instances,
    pub(crate) max_keys: usize,
    pub(crate) background: Arc<Background>,
}

impl Fallback {
    pub(crate) fn new(settings: Settings) -> Self {
        let Settings { store, breaker, clock, deadline, observer, instances, max_keys, background } =
            settings;
        Self(Arc::new(Shared {
            store,
            breaker,
            clock,
            deadline,
            observer,
            instances,
            seen: LastSeen::new(max_keys),
            table: Table::new(max_keys),
            background,
            reconciliation: reconcile::Reconciliation::default(),
        }))
    }

    /// Starts the heartbeats by which instances count each other, unless they are running.
    #[inline]
    pub(crate) fn ensure_counted(&self) {
        instances::ensure_counted(&self.0);
    }

    /// Charges the store for what was admitted here, before a shutdown.
    pub(crate) async fn reconcile_before_shutdown(&self, ends: Instant) {
        self.0.reconcile_before_shutdown(ends).await;
    }

    /// How many processes there are, as far as is known.
    pub(crate) fn instances(&self) -> u64 {
        self.0.instances.known()
    }

    /// Whether what the store decided is worth to be [noted](Self::note).
    #[inline]
    pub(crate) fn is_worth_noting(decision: &Decision) -> bool {
        seen::is_worth_noting(decision)
    }

    /// What the store decided, for when it does not.
    pub(crate) fn note(&self, target: &Target, decision: &Decision, before: &Before) {
        self.0.seen.note(target, decision, before, &self.0.clock);
    }

    /// Decides a group within this process's shares, all or nothing.
    pub(crate) fn take(&self, items: &[Item], n: u64) -> LocalOutcome {
        let shared = &self.0;
        let instances = shared.instances.known();
        let parts: SmallVec<[Part<'_>; 1]> = items.iter().map(|item| Part::new(item, instances)).collect();
        // Such a group cannot pass, so it charges nothing: it only asks how long to wait.
        let n = if parts.iter().any(|part| part.is_above_share) { 0 } else { n };
        let now_us = shared.clock.now_us();
        let warm = |target: &Target, share: &Quota| shared.seen.record(target, share);
        let outcome = shared.table.take(&parts, n, now_us, warm);
        let passes = n > 0 && outcome.k > 0;
        if passes {
            reconcile::ensure_started(shared);
        }
        let answers = parts.iter().enumerate().map(|(at, part)| part.answer(n, at, &outcome)).collect();
        LocalOutcome { passes, answers, now_us }
    }
}

/// The fallback's decision on a group.
pub(crate) struct LocalOutcome {
    /// Whether all of it was admitted and charged; false for a peek.
    pub(crate) passes: bool,
    /// One for each item.
    pub(crate) answers: SmallVec<[Answer; 1]>,
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

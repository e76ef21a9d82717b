//! The components of a limiter, which the stages use.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::defined_gates::DefinedGates;
use super::reserve::{SettleQueue, SettleQueueSettings, UnheldCharges};
use crate::batch::Batch;
use crate::connection::Deadline;
use crate::error::Error;
use crate::in_flight;
use crate::in_flight::adaptive::AdaptiveLimits;
use crate::in_flight::{PermitPool, adaptive};
use crate::key::keyed_hash::KeyedHasher;
use crate::key::reservation_secret::Secrets;
use crate::key::{HashTag, Keyspace};
use crate::local::breaker::Breaker;
use crate::local::deny_cache::DenyCache;
use crate::local::fallback::{Fallback, Instances, Publisher};
use crate::local::lease::LeaseRegistry;
use crate::local::on_failure::OnFailure;
use crate::local::overrides::Overrides;
use crate::local::{breaker, fallback, overrides};
#[cfg(feature = "admin")]
use crate::observe::figures::BUCKET;
use crate::observe::figures::Figures;
use crate::observe::observer::EventSink;
use crate::observe::warning::WarningSink;
use crate::quota::{Quota, Rate};
#[cfg(feature = "regions")]
use crate::regions::replicator::{Replicator, Status};
#[cfg(feature = "regions")]
use crate::regions::{Mode, Replicated};
use crate::runtime::background::Background;
use crate::runtime::clock::{Clock, Stopwatch};
use crate::store::{GateInfo, Group, GroupItem, Store, Target};

pub(crate) struct Pipeline {
    pub(super) overrides: Overrides,
    pub(super) leases: LeaseRegistry,
    pub(super) deny_cache: Option<DenyCache>,
    /// `breaker` and `fallback` are set if the store can fail.
    pub(super) breaker: Option<Arc<Breaker>>,
    pub(super) batch: Batch,
    pub(super) store: Arc<Store>,
    pub(super) fallback: Option<Fallback>,
    pub(super) permits: PermitPool,
    pub(super) adaptive: AdaptiveLimits,
    /// Set if the store can fail.
    pub(super) settle_queue: Option<SettleQueue>,
    pub(crate) unheld: UnheldCharges,
    pub(crate) secrets: Secrets,
    pub(crate) events: EventSink,
    /// Set if this process publishes figures, or keeps them in memory.
    pub(super) figures: Option<Arc<Figures>>,
    pub(crate) warnings: WarningSink,
    pub(crate) defined_gates: DefinedGates,
    pub(super) background: Arc<Background>,
    pub(super) keyspace: Keyspace,
    keyed_hasher: KeyedHasher,
    /// Set if there are other regions.
    #[cfg(feature = "regions")]
    pub(super) replicator: Option<Arc<Replicator>>,
    /// A peek that any working store can answer.
    pub(super) probe: Group,
    pub(super) deadline: Duration,
    pub(super) operator_deadline: Duration,
    /// The most debt that units used may leave, in limits of their quota.
    pub(super) debt_cap: u64,
    pub(crate) on_failure: OnFailure,
    /// The clock of leases; with Redis its own clock decides.
    pub(super) clock: Clock,
    pub(super) is_shut_down: AtomicBool,
}

/// The settings of a limiter that do not depend on the store.
pub(crate) struct LimiterSettings {
    #[cfg(feature = "regions")]
    pub(crate) replicator: Option<Arc<Replicator>>,
    pub(crate) background: Arc<Background>,
    pub(crate) keyspace: Keyspace,
    pub(crate) deadline: Duration,
    pub(crate) debt_cap: u64,
    pub(crate) on_failure: OnFailure,
    pub(crate) events: EventSink,
    pub(crate) warnings: WarningSink,
    pub(crate) clock: Clock,
    pub(crate) max_keys: usize,
    /// `None`: the processes are counted.
    pub(crate) instances: Option<u64>,
    pub(crate) breaker: bool,
    pub(crate) overrides: bool,
    pub(crate) figures: bool,
    pub(crate) permit_ttl: Duration,
    pub(crate) operator_deadline: Duration,
    /// For the tokens of reservations.
    pub(crate) secrets: Secrets,
}

impl Pipeline {
    pub(crate) fn new(
        store: Arc<Store>,
        batch: Batch,
        deny_cache: Option<DenyCache>,
        settings: LimiterSettings,
    ) -> Result<Self, Error> {
        let LimiterSettings {
            background,
            keyspace,
            deadline,
            debt_cap,
            on_failure,
            events,
            warnings,
            clock,
            max_keys,
            secrets,
            ..
        } = settings;
        let keyed_hasher = KeyedHasher::default();
        let probes = probes(&keyspace, &keyed_hasher)?;
        let probe = probes[0].clone();
        let can_fail = matches!(*store, Store::Redis(_));
        let is_stub = matches!(*store, Store::Stub(_));
        let figures = (settings.figures && !is_stub).then(|| Arc::new(Figures::default()));
        let breaker = can_fail.then(|| {
            Arc::new(Breaker::new(breaker::BreakerSettings {
                store: store.clone(),
                probes,
                deadline,
                events: events.clone(),
                warnings: warnings.clone(),
                policy: on_failure,
                instances: settings.instances.unwrap_or(0),
                background: background.clone(),
                is_enabled: settings.breaker,
            }))
        });
        let overrides = Overrides::new(overrides::OverrideSettings {
            store: store.clone(),
            breaker: breaker.clone(),
            clock: clock.clone(),
            operator_deadline: settings.operator_deadline,
            events: events.clone(),
            warnings: warnings.clone(),
            key: keyspace.overrides(),
            background: background.clone(),
            follow: settings.overrides,
        });
        let fallback = breaker.clone().map(|breaker| {
            Fallback::new(fallback::FallbackSettings {
                store: store.clone(),
                breaker,
                clock: clock.clone(),
                deadline,
                events: events.clone(),
                warnings: warnings.clone(),
                instances: match settings.instances {
                    Some(instances) => Instances::given(instances),
                    None => Instances::counted(keyspace.instances()),
                },
                max_keys,
                publisher: figures.clone().map(|figures| Publisher::new(figures, keyspace.clone())),
                background: background.clone(),
            })
        });
        let permits = PermitPool::new(in_flight::PermitSettings {
            store: store.clone(),
            batch: batch.clone(),
            breaker: breaker.clone(),
            fallback: fallback.clone(),
            events: events.clone(),
            warnings: warnings.clone(),
            background: background.clone(),
            deadline,
            ttl: settings.permit_ttl,
            keyspace: keyspace.clone(),
        });
        let adaptive = AdaptiveLimits::new(adaptive::AdaptiveSettings {
            store: store.clone(),
            breaker: breaker.clone(),
            events: events.clone(),
            background: background.clone(),
            deadline,
        });
        let settle_queue = breaker.clone().map(|breaker| {
            SettleQueue::new(SettleQueueSettings {
                store: store.clone(),
                breaker,
                deadline,
                events: events.clone(),
                background: background.clone(),
            })
        });
        Ok(Self {
            overrides,
            leases: LeaseRegistry::default(),
            deny_cache,
            breaker,
            batch,
            store,
            fallback,
            permits,
            adaptive,
            settle_queue,
            unheld: UnheldCharges::default(),
            secrets,
            events,
            figures,
            warnings,
            defined_gates: DefinedGates::default(),
            background,
            keyspace,
            keyed_hasher,
            #[cfg(feature = "regions")]
            replicator: settings.replicator,
            probe,
            deadline,
            operator_deadline: settings.operator_deadline,
            debt_cap,
            on_failure,
            clock,
            is_shut_down: AtomicBool::new(false),
        })
    }

    /// Returns a charge of a key that no caller uses, by a quota that admits it.
    pub(super) fn charge_probe(&self, quota: Quota) -> Result<Group, Error> {
        let gate = GateInfo::new(&self.keyspace, &self.keyed_hasher, "ready", quota)?;
        Ok(probe(&Arc::new(gate), b"probe of a charge", 1, self.probe.hash_tag()))
    }

    pub(crate) fn gate_info(&self, name: &str, quota: Quota) -> Result<GateInfo, Error> {
        let info = GateInfo::new(&self.keyspace, &self.keyed_hasher, name, quota)?;
        let counters = self.figures.as_ref().map(|figures| figures.gate(name));
        Ok(GateInfo { counters, ..info })
    }

    /// Returns the same gate with another quota.
    pub(super) fn info_with_quota(&self, info: &GateInfo, quota: Quota) -> Result<GateInfo, Error> {
        #[cfg(feature = "regions")]
        if let Some(replicated) = &info.replicated {
            return self.info_with(info, quota, replicated.with_quota(quota)?);
        }
        let other = GateInfo::new(&self.keyspace, &self.keyed_hasher, &info.name, quota)?;
        Ok(GateInfo { counters: info.counters.clone(), ..other })
    }

    /// Returns the same gate with a limit of all regions. A store in memory is the only one.
    #[cfg(feature = "regions")]
    pub(crate) fn replicated_info(&self, info: &GateInfo, mode: Mode) -> Result<GateInfo, Error> {
        match &self.replicator {
            Some(replicator) => {
                self.info_with(info, info.quota, Replicated::new(info.quota, mode, replicator)?)
            }
            None if matches!(*self.store, Store::Redis(_)) => Err(Error::config(
                "a replicated gate needs other regions: name them by `Builder::region` and `Builder::peer`",
            )),
            None => mode.check_quota(&info.quota).map(|()| info.clone()),
        }
    }

    #[cfg(feature = "regions")]
    fn info_with(&self, info: &GateInfo, quota: Quota, replicated: Replicated) -> Result<GateInfo, Error> {
        let other = GateInfo::replicated(&self.keyspace, &self.keyed_hasher, &info.name, quota, replicated)?;
        Ok(GateInfo { counters: info.counters.clone(), ..other })
    }

    #[cfg(feature = "regions")]
    pub(crate) fn replication_status(&self) -> Option<Status> {
        self.replicator.as_ref().map(|replicator| replicator.status())
    }

    /// Returns the longest time that a decision may take, of which a request can have its own. In memory there is nothing to
    /// wait for, so no decision is late.
    pub(super) fn longest(&self, own: Option<Duration>) -> Duration {
        match &*self.store {
            Store::Memory(_) => Duration::MAX,
            _ => own.unwrap_or(self.deadline),
        }
    }

    /// Returns the deadline of checks that have none of their own.
    pub(crate) const fn deadline(&self) -> Duration {
        self.deadline
    }

    #[cfg(feature = "admin")]
    pub(crate) fn operator_deadline(&self) -> Deadline {
        Deadline::new(self.operator_deadline)
    }

    pub(crate) fn deadline_of(&self, own: Option<Duration>) -> Deadline {
        Deadline::new(self.longest(own))
    }

    pub(crate) fn stopwatch(&self) -> Stopwatch {
        self.store.stopwatch()
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.store.sleep(duration).await;
    }

    /// Runs a job in the background, independent of the caller's runtime.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(job);
    }

    /// Returns a key as written in the store.
    pub(crate) fn encoded(&self, key: &[u8]) -> String {
        self.keyspace.encoded(key)
    }

    /// Keeps the figures of a limiter in memory in this process, until the limiter is dropped.
    #[cfg(feature = "admin")]
    pub(crate) fn record_figures(&self) {
        let Some(figures) = self.figures.as_ref().filter(|figures| figures.start_recording()) else { return };
        let (figures, clock) = (Arc::downgrade(figures), self.clock.clone());
        self.spawn(async move {
            while let Some(figures) = figures.upgrade() {
                figures.record(clock.now_us());
                drop(figures);
                clock.sleep(BUCKET).await;
            }
        });
    }

    #[cfg(feature = "admin")]
    pub(crate) fn figures(&self) -> Option<&Figures> {
        self.figures.as_deref()
    }

    #[cfg(feature = "admin")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    #[cfg(feature = "admin")]
    pub(crate) const fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }
}

/// Returns peeks, which write nothing: one for each hash tag of a cluster, otherwise one.
fn probes(keyspace: &Keyspace, keyed_hasher: &KeyedHasher) -> Result<Vec<Group>, Error> {
    let quota = Quota::token_bucket(1, Rate::per_second(1));
    let gate = Arc::new(GateInfo::new(keyspace, keyed_hasher, "ready", quota)?);
    Ok(keyspace.hash_tags().map(|hash_tag| probe(&gate, b"", 0, hash_tag)).collect())
}

fn probe(gate: &Arc<GateInfo>, key: &[u8], cost: u64, hash_tag: HashTag) -> Group {
    Group::of_one(GroupItem::new(Target::at(gate, key, hash_tag), cost))
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("store", &self.store)
            .field("keyspace", &self.keyspace)
            .field("breaker", &self.breaker)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

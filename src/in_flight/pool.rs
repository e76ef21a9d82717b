//! The state that the permits, the callers and the background jobs of one limiter share, and its calls to the
//! store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::holder::{HolderLease, OwnHolder, new_name};
use super::key_state::{Circumstances, Plan};
use super::registry::{KeyEntry, Registry};
use crate::batch::{Batch, Share};
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::{HASH_TAGS, HashTag, Keyspace};
use crate::local::breaker::Breaker;
use crate::local::fallback::Fallback;
use crate::observe::observer::{Event, EventSink};
use crate::observe::warning::{RepeatedWarning, WarningSink};
use crate::runtime::background::{Background, JobSlot};
use crate::runtime::clock::Clock;
use crate::runtime::sync::lock;
use crate::store::{Companion, Group, GroupItem, HolderMessage, LeaseCall, LeaseReply, Store, Target};

/// The keys of one call that reports units.
pub(super) const KEYS_PER_CALL: usize = 64;
/// The event that a caller waits for until it times out.
const OPENING: &str = "Redis to open a lease for permits";

pub(super) struct PoolState {
    pub(super) store: Arc<Store>,
    pub(super) batch: Batch,
    pub(super) breaker: Option<Arc<Breaker>>,
    pub(super) fallback: Option<Fallback>,
    pub(super) events: EventSink,
    pub(super) warnings: WarningSink,
    pub(super) unrenewed: RepeatedWarning,
    pub(super) background: Arc<Background>,
    /// The store's clock if the store is in this process, else the system's.
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    pub(super) ttl: Duration,
    pub(super) keyspace: Keyspace,
    pub(super) registry: Registry,
    holders: [OnceLock<Arc<OwnHolder>>; HASH_TAGS],
    pub(super) heartbeats: JobSlot,
    /// Starts the heartbeats unless they are running.
    ensure_heartbeats: fn(&Arc<Self>),
    /// Wakes the heartbeat job.
    pub(super) wake: Arc<Notify>,
    /// Whether a lease has lapsed, so that keys have to be restored.
    pub(super) is_restoring: AtomicBool,
    /// The number of connections made until the last heartbeat.
    pub(super) connections: AtomicU64,
    pub(super) is_ended: AtomicBool,
}

/// The settings of the permits of a limiter.
pub(crate) struct PermitSettings {
    pub(crate) store: Arc<Store>,
    pub(crate) batch: Batch,
    pub(crate) breaker: Option<Arc<Breaker>>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) events: EventSink,
    pub(crate) warnings: WarningSink,
    pub(crate) background: Arc<Background>,
    pub(crate) deadline: Duration,
    pub(crate) ttl: Duration,
    pub(crate) keyspace: Keyspace,
}

impl PoolState {
    pub(super) fn new(settings: PermitSettings, ensure_heartbeats: fn(&Arc<Self>)) -> Self {
        let PermitSettings {
            store,
            batch,
            breaker,
            fallback,
            events,
            warnings,
            background,
            deadline,
            ttl,
            keyspace,
        } = settings;
        Self {
            clock: store.clock(),
            store,
            batch,
            breaker,
            fallback,
            events,
            warnings,
            unrenewed: RepeatedWarning::new("permits-unrenewed"),
            background,
            deadline,
            ttl,
            keyspace,
            registry: Registry::default(),
            holders: std::array::from_fn(|_| OnceLock::new()),
            heartbeats: JobSlot::default(),
            ensure_heartbeats,
            wake: Arc::new(Notify::new()),
            is_restoring: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
        }
    }

    pub(super) fn holder(&self, hash_tag: HashTag) -> &Arc<OwnHolder> {
        let holder = || Arc::new(OwnHolder::new(hash_tag, self.keyspace.holders(hash_tag)));
        self.holders[hash_tag.index()].get_or_init(holder)
    }

    /// Returns the holders that were ever in use.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Arc<OwnHolder>> {
        self.holders.iter().filter_map(OnceLock::get)
    }

    pub(super) fn circumstances(&self, holder: &OwnHolder) -> Circumstances {
        Circumstances {
            now_us: self.clock.local_us(),
            lease: holder.lease_number(),
            instances: self.fallback.as_ref().map_or(1, Fallback::instances),
            ttl_us: self.ttl.as_micros() as u64,
        }
    }

    pub(super) fn ensure_heartbeats(self: &Arc<Self>) {
        (self.ensure_heartbeats)(self);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// Returns an error if the leases have ended, or are about to end. Called once the key has a message in flight: either
    /// [`end_lease`](Self::end_lease) finds it, or this finds the shutdown.
    pub(super) fn ensure_open(&self) -> Result<(), Error> {
        if self.has_ended() { Err(Error::shut_down()) } else { Ok(()) }
    }
}

/// # Leases
impl PoolState {
    /// Returns the current lease, or opens one.
    pub(super) async fn lease(
        self: &Arc<Self>,
        holder: &OwnHolder,
        deadline: Deadline,
    ) -> Result<HolderLease, Error> {
        if let Some(lease) = holder.lease() {
            return Ok(lease);
        }
        let _opening = match holder.opening.try_lock() {
            Ok(opening) => opening,
            Err(_) => timeout_at(deadline.at, holder.opening.lock())
                .await
                .map_err(|_| Error::timeout(OPENING, deadline.after))?,
        };
        if let Some(lease) = holder.lease() {
            return Ok(lease);
        }
        if self.has_ended() {
            return Err(Error::shut_down());
        }
        let name = new_name(self.ttl.as_millis() as u64);
        let valid_until_us = self.valid_until_us();
        let reply = self.call_lease(holder, LeaseCall::Open { name: &name }, deadline).await?;
        let lease = holder.opened(name, &reply, valid_until_us);
        self.ensure_heartbeats();
        Ok(lease)
    }

    /// Returns until when a lease surely lasts that a call sent now opens or renews: by a tenth less than its
    /// time to live, since the clocks may not run equally fast.
    pub(super) fn valid_until_us(&self) -> u64 {
        self.clock.local_us() + self.ttl.as_micros() as u64 / 10 * 9
    }

    pub(super) async fn call_lease(
        &self,
        holder: &OwnHolder,
        call: LeaseCall<'_>,
        deadline: Deadline,
    ) -> Result<LeaseReply, Error> {
        if let Some(breaker) = &self.breaker {
            breaker.check(holder.hash_tag)?;
        }
        self.send_lease(holder, call, deadline).await
    }

    /// Sends the call also while the circuit breaker is open.
    pub(super) async fn send_lease(
        &self,
        holder: &OwnHolder,
        call: LeaseCall<'_>,
        deadline: Deadline,
    ) -> Result<LeaseReply, Error> {
        let reply = self.store.permit_lease(&holder.redis_key, holder.hash_tag, call, deadline).await;
        if let Some(breaker) = &self.breaker {
            breaker.record(holder.hash_tag, &reply, deadline.after);
        }
        reply
    }

    /// Notes that the store knows a lease no more, and has all its units restored. Does nothing during a shutdown, which
    /// ends the lease itself: Redis rejects a message that arrives after that like one of a lease that lapsed.
    pub(super) async fn lapse(self: &Arc<Self>, holder: &OwnHolder, number: u64) {
        if self.has_ended() {
            return;
        }
        // No lease is opened until all keys know that this one lapsed.
        let _opening = holder.opening.lock().await;
        if !holder.end(number) {
            return;
        }
        for key in self.registry.of(holder) {
            let units = lock(&key.state).lapse();
            if units > 0 {
                self.events.notify(&Event::PermitsLapsed { gate: &key.target.gate.name, units });
            }
        }
        holder.changed.notify_waiters();
        self.is_restoring.store(true, Ordering::SeqCst);
        self.wake.notify_one();
        self.ensure_heartbeats();
    }
}

/// # Messages
impl PoolState {
    /// Sends a message, under the current lease or a new one. Returns the number of that lease as well.
    pub(super) async fn exchange(
        self: Arc<Self>,
        key: Arc<KeyEntry>,
        plan: Plan,
    ) -> (Option<u64>, Result<Share, Error>) {
        let after = plan.deadline_us.map_or(self.deadline, Duration::from_micros);
        let deadline = Deadline::new(after);
        let lease = match self.lease(&key.holder, deadline).await {
            Ok(lease) => lease,
            Err(error) => return (None, Err(error)),
        };
        if let Err(error) = self.ensure_open() {
            return (None, Err(error));
        }
        let plan = lock(&key.state).update_keep(plan);
        let group = self.group(&key, &lease, &plan);
        (Some(lease.number), self.send(group, deadline).await)
    }

    /// Returns the group of a message.
    pub(super) fn group(&self, key: &KeyEntry, lease: &HolderLease, plan: &Plan) -> Group {
        let (gate, cost) = match &plan.terms {
            Some(terms) => (&terms.decider, terms.cost),
            None => (&key.target.gate, 1),
        };
        let target = Target { gate: gate.clone(), ..key.target.clone() };
        let message = message(lease, &key.holder, Some(plan.keep));
        let item = GroupItem {
            companion: Some(Box::new(Companion::Message(message))),
            ..GroupItem::new(target, cost)
        };
        Group { items: SmallVec::from_buf([item]), n: plan.n }
    }

    /// Sends a group through the breaker and the batch.
    pub(super) async fn send(&self, group: Group, deadline: Deadline) -> Result<Share, Error> {
        let hash_tag = group.hash_tag();
        if let Some(breaker) = &self.breaker {
            breaker.check(hash_tag)?;
        }
        let share = self.batch.take(group, deadline).await;
        if let Some(breaker) = &self.breaker {
            breaker.record(hash_tag, &share, deadline.after);
        }
        share
    }

    /// Sends the groups of one holder in one call, through the breaker.
    pub(super) async fn send_each(
        &self,
        holder: &OwnHolder,
        groups: Vec<Group>,
        deadline: Deadline,
    ) -> Vec<Result<Share, Error>> {
        if let Some(Err(error)) = self.breaker.as_ref().map(|breaker| breaker.check(holder.hash_tag)) {
            return vec![Err(error); groups.len()];
        }
        let shares = self.batch.take_each(groups, deadline).await;
        if let Some(breaker) = &self.breaker {
            shares.iter().for_each(|share| breaker.record(holder.hash_tag, share, deadline.after));
        }
        shares
    }

    /// Reports that the process holds nothing more, then ends its leases. Takes until `ends` at most.
    pub(super) async fn end(&self, ends: Instant) {
        self.is_ended.store(true, Ordering::Release);
        self.wake.notify_one();
        let error = Error::shut_down();
        self.registry.all().iter().for_each(|key| lock(&key.state).close(&error));
        let ending = async {
            for holder in self.holders() {
                // A lease that is being opened is ended as well; no other one is opened.
                let opening = holder.opening.lock().await;
                let lease = holder.lease();
                drop(opening);
                if let Some(lease) = lease {
                    self.end_lease(holder, &lease).await;
                }
            }
        };
        let _ = timeout_at(ends, ending).await;
    }

    /// Race: this numbers the report of a key; a driver or a group, which has checked [`ensure_open`](Self::ensure_open)
    /// before, numbers its message; Redis processes the message first, and rejects the report as old. Or Redis processes
    /// the message between the report and the end of the lease. So a key with a message in flight reports again, after
    /// the end of the lease: from then on Redis rejects messages, and removes the units of those before.
    async fn end_lease(&self, holder: &OwnHolder, lease: &HolderLease) {
        let keys = self.registry.of(holder);
        let busy: Vec<_> = keys.iter().filter(|key| lock(&key.state).is_busy()).cloned().collect();
        if !self.report_nothing(holder, lease, &keys).await {
            return;
        }
        let call = LeaseCall::End { name: &lease.name };
        // A lease that is not ended lapses.
        let _ = self.call_lease(holder, call, Deadline::new(self.deadline)).await;
        holder.end(lease.number);
        holder.changed.notify_waiters();
        self.report_nothing(holder, lease, &busy).await;
    }

    /// Reports that the process holds nothing of these keys. Returns whether Redis replied.
    async fn report_nothing(&self, holder: &OwnHolder, lease: &HolderLease, keys: &[Arc<KeyEntry>]) -> bool {
        let report = Plan { terms: None, n: 0, keep: 0, deadline_us: None };
        for chunk in keys.chunks(KEYS_PER_CALL) {
            let groups = chunk.iter().map(|key| self.group(key, lease, &report)).collect();
            let results = self.send_each(holder, groups, Deadline::new(self.deadline)).await;
            if results.iter().any(|result| result.as_ref().is_err_and(is_without_reply)) {
                return false;
            }
        }
        true
    }
}

/// Returns whether a message failed for another reason than its number or its lease.
fn is_without_reply(error: &Error) -> bool {
    error.is_unavailable() && !error.is_stale_message() && !error.is_lapsed_lease()
}

pub(super) fn message(lease: &HolderLease, holder: &OwnHolder, keep: Option<u64>) -> HolderMessage {
    HolderMessage {
        holder: lease.name.clone(),
        lease_end_us: lease.end_us,
        number: holder.next_message(),
        keep,
        is_shared: false,
    }
}

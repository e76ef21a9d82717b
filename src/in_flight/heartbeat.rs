//! The heartbeats: one call per interval and hash tag renews all that this process holds. They also have keys
//! report what they hold.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{join_all, select};

use super::driver::Driver;
use super::holder::OwnHolder;
use super::key_state::{Plan, Step};
use super::pool::{KEYS_PER_CALL, PoolState};
use super::registry::KeyEntry;
use crate::connection::Deadline;
use crate::error::Error;
use crate::runtime::background::Job;
use crate::runtime::sync::lock;
use crate::store::LeaseCall;

/// A lease is ended after this many times its time to live without a key in use.
const IDLE_TTLS: u64 = 2;

/// Starts the heartbeats, unless they are running.
pub(super) fn ensure_running(inner: &Arc<PoolState>) {
    let beating = || LeaseBeating(Arc::downgrade(inner));
    inner.heartbeats.ensure_running(&inner.background, beating);
}

/// Sends heartbeats until there is neither a lease nor a key, or the limiter is dropped or shut down.
struct LeaseBeating(Weak<PoolState>);

impl Job for LeaseBeating {
    async fn run(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        let (clock, wake) = (inner.clock.clone(), inner.wake.clone());
        let interval_us = inner.ttl.as_micros() as u64 / 3;
        inner.connections.store(inner.store.connections(), Ordering::Relaxed);
        drop(inner);
        let mut beat_at_us = clock.local_us() + shortened(interval_us);
        let mut reports = Reports::default();
        let mut was_answered = true;
        loop {
            let Some(inner) = self.0.upgrade().filter(|inner| inner.is_beating()) else { return };
            if beat_at_us <= clock.local_us() {
                let started_us = clock.local_us();
                let beaten = inner.beat().await;
                if let Err(error) = &beaten
                    && was_answered
                {
                    inner.warn_unrenewed(error);
                }
                was_answered = beaten.is_ok();
                // After a failure, the next ones come sooner: a lease allows for two lost heartbeats.
                let pause_us = if was_answered { interval_us } else { interval_us / 4 };
                beat_at_us = started_us + shortened(pause_us);
                reports.replace(&inner, interval_us);
            }
            if inner.is_restoring.swap(false, Ordering::SeqCst) {
                reports.replace(&inner, interval_us);
            }
            reports.send_due(&inner);
            drop(inner);
            let until_us = reports.due_us().map_or(beat_at_us, |due_us| due_us.min(beat_at_us));
            let pause = Duration::from_micros(until_us.saturating_sub(clock.local_us()));
            select(pin!(clock.sleep(pause)), pin!(wake.notified())).await;
        }
    }

    fn is_needed(&self) -> bool {
        self.0.upgrade().is_some_and(|inner| inner.is_beating())
    }
}

/// Shortens a pause by up to 10 % jitter.
fn shortened(pause_us: u64) -> u64 {
    pause_us - fastrand::u64(..=pause_us / 10)
}

impl PoolState {
    fn is_beating(&self) -> bool {
        let has_work =
            || !self.registry.is_empty() || self.holders().any(|holder| holder.lease_number().is_some());
        !self.has_ended() && has_work()
    }

    /// Sends one heartbeat per hash tag in use. Returns the error of one that was not answered.
    async fn beat(self: &Arc<Self>) -> Result<(), Error> {
        let holders: Vec<_> = self.holders().cloned().collect();
        let beats = join_all(holders.iter().map(|holder| self.beat_of(holder))).await;
        let connections = self.store.connections();
        if self.connections.swap(connections, Ordering::Relaxed) != connections {
            // Another server may answer, or the same one after a restart.
            self.registry.all().iter().for_each(|key| lock(&key.state).doubt());
        }
        beats.into_iter().collect()
    }

    /// Warns of the first of several heartbeats in a row that failed. A shutdown ends the leases, which is not a failure.
    fn warn_unrenewed(&self, error: &Error) {
        if self.has_ended() {
            return;
        }
        self.warnings.warn(&self.unrenewed, || {
            let (error, ttl) = (error.clone().at(self.store.address().unwrap_or_default()), self.ttl);
            format!(
                "a lease of permits was not renewed: its units are free for others {ttl:?} after the last renewal: {error}. \
                 If redis-unreachable or redis-refused is reported too, the cause is the same"
            )
        });
    }

    async fn beat_of(self: &Arc<Self>, holder: &OwnHolder) -> Result<(), Error> {
        // More than a check has, since no request waits for it. Servers that hang do not keep the heartbeats of the others
        // until the leases end.
        let deadline = Deadline::new(self.ttl / 6);
        let Some(lease) = holder.lease() else {
            return match holder.is_in_use() {
                true => self.lease(holder, deadline).await.map(drop),
                false => Ok(()),
            };
        };
        let idle_us = self.clock.local_us().saturating_sub(holder.idle_since_us.load(Ordering::SeqCst));
        if !holder.is_in_use() && idle_us > IDLE_TTLS * self.ttl.as_micros() as u64 {
            if let Ok(_opening) = holder.opening.try_lock() {
                // From now on, an acquire opens another lease.
                holder.end(lease.number);
                return self
                    .call_lease(holder, LeaseCall::End { name: &lease.name }, deadline)
                    .await
                    .map(drop);
            }
            return Ok(());
        }
        let valid_until_us = self.valid_until_us();
        // Not through the circuit breaker: a Redis that is too slow for checks can still renew leases.
        match self.send_lease(holder, LeaseCall::Renew { name: &lease.name }, deadline).await {
            Ok(reply) => {
                holder.renewed(lease.number, &reply, valid_until_us);
                Ok(())
            }
            Err(error) if error.is_lapsed_lease() => {
                self.lapse(holder, lease.number).await;
                self.lease(holder, deadline).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }
}

// Keys that have to report what they hold: after a lapse, a new connection, a message without a reply, or a long
// time without a message. 64 keys travel in one call, and the calls are spread over an interval.

/// The store keeps an unused key for an hour, so each key is reported at least twice as often.
const TOUCH_AFTER_US: u64 = 1_800_000_000;

#[derive(Default)]
pub(super) struct Reports {
    keys: VecDeque<Weak<KeyEntry>>,
    pause_us: u64,
    due_us: u64,
}

impl Reports {
    /// Collects the keys that have to report. Removes those that are not used any more: nothing else looks at a key
    /// whose lease has lapsed while it held nothing.
    pub(super) fn replace(&mut self, inner: &Arc<PoolState>, interval_us: u64) {
        self.keys.clear();
        for key in inner.registry.all() {
            let now = inner.circumstances(&key.holder);
            if lock(&key.state).is_report_due(&now, touch_before_us(now.now_us)) {
                self.keys.push_back(Arc::downgrade(&key));
            } else {
                inner.registry.remove_unused(&key, &now);
            }
        }
        self.pause_us = interval_us / (self.keys.len().div_ceil(KEYS_PER_CALL) as u64).max(1);
        self.due_us = 0;
    }

    /// Returns when the next keys report.
    pub(super) fn due_us(&self) -> Option<u64> {
        (!self.keys.is_empty()).then_some(self.due_us)
    }

    /// Has the next keys report, if they are due.
    pub(super) fn send_due(&mut self, inner: &Arc<PoolState>) {
        let now_us = inner.clock.local_us();
        if self.keys.is_empty() || now_us < self.due_us {
            return;
        }
        self.due_us = now_us + self.pause_us;
        let most = self.keys.len().min(KEYS_PER_CALL);
        let keys: Vec<_> = self.keys.drain(..most).filter_map(|key| key.upgrade()).collect();
        let mut messages: Vec<_> = keys.iter().filter_map(|key| message(inner, key)).collect();
        while let Some((driver, _)) = messages.first() {
            let holder = driver.key.holder.clone();
            let (now, later) =
                messages.into_iter().partition(|(driver, _)| Arc::ptr_eq(&driver.key.holder, &holder));
            messages = later;
            let _ = inner.background.spawn(send_together(inner.clone(), holder, now));
        }
    }
}

/// Returns the message of a key that is idle, with its driver. A key that is in use reports on its own.
fn message(inner: &Arc<PoolState>, key: &Arc<KeyEntry>) -> Option<(Driver, Plan)> {
    let now = inner.circumstances(&key.holder);
    if !lock(&key.state).prompt(&now, touch_before_us(now.now_us)) {
        return None;
    }
    let Some(mut driver) = Driver::claim(inner, key) else {
        key.wake.notify_one();
        return None;
    };
    match driver.step()? {
        Step::Send(plan) => Some((driver, plan)),
        _ => {
            driver.spawn();
            None
        }
    }
}

/// Sends the messages of several keys in one call.
async fn send_together(inner: Arc<PoolState>, holder: Arc<OwnHolder>, messages: Vec<(Driver, Plan)>) {
    let (drivers, plans): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
    let deadline = Deadline::new(inner.deadline);
    let lease = inner.lease(&holder, deadline).await;
    let (lease, results) = match inner.ensure_open().and(lease) {
        Ok(lease) => {
            let group = |(driver, plan): (&Driver, Plan)| {
                let plan = lock(&driver.key.state).update_keep(plan);
                inner.group(&driver.key, &lease, &plan)
            };
            let groups = drivers.iter().zip(plans).map(group).collect();
            (Some(lease.number), inner.send_each(&holder, groups, deadline).await)
        }
        Err(error) => (None, vec![Err(error); drivers.len()]),
    };
    for (driver, result) in drivers.into_iter().zip(results) {
        driver.answered(lease, result).await;
        driver.spawn();
    }
}

fn touch_before_us(now_us: u64) -> u64 {
    now_us.saturating_sub(TOUCH_AFTER_US)
}

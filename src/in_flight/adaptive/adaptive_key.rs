//! The adaptive limit of a key in this process: operations, and reports to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::timeout_at;

use super::copy::{Ended, LimitCopy};
use crate::connection::Deadline;
use crate::error::Error;
use crate::local::breaker::Breaker;
use crate::observe::observer::{Event, EventSink};
use crate::quota::reference::adapt::{Bounds, Report};
use crate::runtime::background::{Background, Job, JobSlot};
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Mutex, lock};
use crate::store::{Adapted, Store, Target};

/// The parts that the adaptive limits of one limiter share.
pub(crate) struct AdaptiveSettings {
    pub(crate) store: Arc<Store>,
    /// `None` if the store cannot fail.
    pub(crate) breaker: Option<Arc<Breaker>>,
    pub(crate) events: EventSink,
    pub(crate) background: Arc<Background>,
    pub(crate) deadline: Duration,
}

pub(crate) struct AdaptiveKey {
    settings: Arc<AdaptiveSettings>,
    target: Target,
    clock: Clock,
    copy: Mutex<LimitCopy>,
    reporting: JobSlot,
    /// Locked by the caller that reports before its acquire.
    asking: tokio::sync::Mutex<()>,
}

impl AdaptiveKey {
    pub(super) fn new(settings: &Arc<AdaptiveSettings>, target: &Target, bounds: Bounds) -> Self {
        Self {
            settings: settings.clone(),
            target: target.clone(),
            clock: settings.store.clock(),
            copy: Mutex::new(LimitCopy::new(bounds)),
            reporting: JobSlot::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn set_bounds(&self, bounds: Bounds) {
        lock(&self.copy).bounds = bounds;
    }

    /// Returns the current limit; `None` as long as the store has not answered.
    pub(crate) fn limit(&self) -> Option<u64> {
        lock(&self.copy).limit()
    }

    /// Reports first if this process has no limit yet, or one of long ago. Waits until `deadline` at most: then the
    /// acquire is decided by the limit that there is.
    pub(crate) async fn ensure_current(&self, deadline: Deadline) {
        if self.is_current() {
            return;
        }
        let asked = async {
            let _asking = self.asking.lock().await;
            if !self.is_current() && lock(&self.copy).is_due(self.clock.local_us()) {
                self.exchange(Deadline::new(self.settings.deadline)).await;
            }
        };
        let _ = timeout_at(deadline.at, asked).await;
    }

    fn is_current(&self) -> bool {
        lock(&self.copy).is_current(self.clock.local_us())
    }

    /// Notes that the processes wanted to hold this number of units of the key at one time.
    pub(crate) fn wanted(self: &Arc<Self>, units: u64) {
        lock(&self.copy).wanted(units);
        self.report_if_due();
    }

    /// Notes that an operation begins, which holds these units.
    pub(crate) fn begin(self: &Arc<Self>, units: u64) -> Operation {
        let began_us = self.clock.local_us();
        lock(&self.copy).begin(units, began_us);
        Operation { key: self.clone(), units, began_us, mark: AtomicU8::new(UNMARKED) }
    }

    fn end(self: &Arc<Self>, ended: Ended, units: u64, began_us: u64) {
        let now_us = self.clock.local_us();
        lock(&self.copy).end(ended, units, now_us.saturating_sub(began_us), now_us);
        self.report_if_due();
    }

    /// Reports in the background if it is time.
    fn report_if_due(self: &Arc<Self>) {
        if lock(&self.copy).is_due(self.clock.local_us()) {
            self.reporting.ensure_running(&self.settings.background, || Reporting(self.clone()));
        }
    }

    /// Reports to the store, and takes its limit.
    async fn exchange(&self, deadline: Deadline) {
        let (report, bounds) = lock(&self.copy).take_report(self.clock.local_us());
        let sent = Sent { key: self, report, is_answered: false };
        let reply = self.call(&report, &bounds, deadline).await;
        sent.answered(reply);
    }

    async fn call(&self, report: &Report, bounds: &Bounds, deadline: Deadline) -> Result<Adapted, Error> {
        let (store, hash_tag) = (&self.settings.store, self.target.hash_tag);
        let Some(breaker) = &self.settings.breaker else {
            return store.adapt(&self.target, report, bounds, deadline).await;
        };
        breaker.check(hash_tag)?;
        let reply = store.adapt(&self.target, report, bounds, deadline).await;
        breaker.record(hash_tag, &reply, deadline.after);
        reply
    }
}

/// A report that was sent. If it is dropped without an answer, the next one becomes due.
struct Sent<'a> {
    key: &'a AdaptiveKey,
    report: Report,
    is_answered: bool,
}

impl Sent<'_> {
    fn answered(mut self, reply: Result<Adapted, Error>) {
        self.is_answered = true;
        let (key, now_us) = (self.key, self.key.clock.local_us());
        let (gate, events) = (&key.target.gate.name, &key.settings.events);
        let mut copy = lock(&key.copy);
        let before = copy.limit();
        match &reply {
            Ok(adapted) => copy.replied(adapted, now_us),
            Err(_) => copy.not_replied(&self.report, now_us),
        }
        let after = copy.limit();
        drop(copy);
        if let Err(error) = &reply {
            events.notify(&Event::Failed { gate, error });
        }
        if let Some(limit) = after.filter(|_| after != before) {
            events.notify(&Event::LimitAdapted { gate, limit });
        }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            lock(&self.key.copy).abandoned(&self.report, self.key.clock.local_us());
        }
    }
}

/// Sends one report.
struct Reporting(Arc<AdaptiveKey>);

impl Job for Reporting {
    async fn run(&self) {
        if !lock(&self.0.copy).is_due(self.0.clock.local_us()) {
            return;
        }
        self.0.exchange(Deadline::new(self.0.settings.deadline)).await;
    }

    /// The next operation that finds a report due sends it.
    fn is_needed(&self) -> bool {
        false
    }
}

const UNMARKED: u8 = 0;
const OVERLOADED: u8 = 1;
const DISREGARDED: u8 = 2;

/// An operation in flight, which the permit of its units holds. Ends when dropped.
pub(crate) struct Operation {
    key: Arc<AdaptiveKey>,
    units: u64,
    began_us: u64,
    mark: AtomicU8,
}

impl Operation {
    /// Marks the operation as rejected by an overloaded service. Without effect after
    /// [`disregard`](Self::disregard).
    pub(crate) fn overloaded(&self) {
        let _ = self.mark.compare_exchange(UNMARKED, OVERLOADED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends the operation for the adaptive limit.
    pub(crate) fn disregard(&self) {
        if self.mark.swap(DISREGARDED, Ordering::Relaxed) != DISREGARDED {
            self.key.end(Ended::Disregarded, self.units, self.began_us);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        match *self.mark.get_mut() {
            UNMARKED => self.key.end(Ended::Served, self.units, self.began_us),
            OVERLOADED => self.key.end(Ended::Overloaded, self.units, self.began_us),
            _ => {}
        }
    }
}

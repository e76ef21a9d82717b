//! Keys that have to report what they hold: after a lapse, a new connection, a message without a reply, or a long
//! time without a message. 64 keys travel in one call, and the calls are spread over an interval.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::driver::Driver;
use super::holder::Holder;
use super::inner::{KEYS_PER_CALL, PermitsInner};
use super::key_state::{Plan, Step};
use super::registry::KeyEntry;
use crate::connection::Deadline;
use crate::runtime::sync::lock;

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
    pub(super) fn replace(&mut self, inner: &Arc<PermitsInner>, interval_us: u64) {
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
    pub(super) fn send_due(&mut self, inner: &Arc<PermitsInner>) {
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
fn message(inner: &Arc<PermitsInner>, key: &Arc<KeyEntry>) -> Option<(Driver, Plan)> {
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
async fn send_together(inner: Arc<PermitsInner>, holder: Arc<Holder>, messages: Vec<(Driver, Plan)>) {
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

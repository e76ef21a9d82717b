//! The driver of a key: a task that sends its messages one after the other, while there are any to send.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::key_state::{KeyState, Step};
use super::pool::PoolState;
use super::registry::KeyEntry;
use crate::batch::Share;
use crate::error::Error;
use crate::observe::observer::Event;
use crate::runtime::sync::lock;

/// A message in flight: the number of its lease, and the result.
type MessageInFlight = BoxFuture<'static, (Option<u64>, Result<Share, Error>)>;

/// Changes the state of a key that is in use, then has its driver look at it.
pub(super) fn change<T>(
    inner: &Arc<PoolState>,
    key: &Arc<KeyEntry>,
    change: impl FnOnce(&mut KeyState, u64) -> T,
) -> T {
    let now_us = inner.clock.local_us();
    let changed = change(&mut lock(&key.state), now_us);
    wake(inner, key);
    changed
}

/// Wakes the driver of a key, or starts it. Called after each change of the state.
pub(super) fn wake(inner: &Arc<PoolState>, key: &Arc<KeyEntry>) {
    match Driver::claim(inner, key) {
        Some(driver) => driver.spawn(),
        None => key.wake.notify_one(),
    }
}

pub(super) struct Driver {
    inner: Arc<PoolState>,
    pub(super) key: Arc<KeyEntry>,
    has_ended: bool,
}

impl Driver {
    /// Returns `None` if the key has a driver.
    pub(super) fn claim(inner: &Arc<PoolState>, key: &Arc<KeyEntry>) -> Option<Self> {
        let was_driven = std::mem::replace(&mut lock(&key.state).is_driven, true);
        (!was_driven).then(|| Self { inner: inner.clone(), key: key.clone(), has_ended: false })
    }

    /// Runs in the background: a caller that is no longer polled delays no other caller of the key.
    pub(super) fn spawn(self) {
        let background = self.inner.background.clone();
        // Without a runtime, the driver is dropped, and the next change starts another.
        let _ = background.spawn(self.run());
    }

    async fn run(mut self) {
        let mut call: Option<MessageInFlight> = None;
        while let Some(step) = self.step() {
            match step {
                Step::Send(plan) => {
                    call = Some(Box::pin(self.inner.clone().exchange(self.key.clone(), plan)));
                }
                Step::Wait(until_us) => {
                    if let Some((lease, result)) = self.wait(&mut call, until_us).await {
                        call = None;
                        self.answered(lease, result).await;
                    }
                }
                Step::Rest => return,
            }
        }
    }

    /// Returns `None` if there is nothing to do any more: the driver has ended then.
    pub(super) fn step(&mut self) -> Option<Step> {
        let now = self.inner.circumstances(&self.key.holder);
        let mut state = lock(&self.key.state);
        let step = match self.inner.has_ended() {
            true => {
                state.close(&Error::shut_down());
                Step::Rest
            }
            false => state.step(&now),
        };
        if !matches!(step, Step::Rest) {
            return Some(step);
        }
        // From now on, a change starts another driver.
        state.is_driven = false;
        self.has_ended = true;
        drop(state);
        self.inner.registry.remove_unused(&self.key, &now);
        // A key that stays may have to report later.
        self.inner.ensure_heartbeats();
        None
    }

    /// Waits for the reply, a change or the time. Returns the reply.
    async fn wait(
        &self,
        call: &mut Option<MessageInFlight>,
        until_us: Option<u64>,
    ) -> Option<(Option<u64>, Result<Share, Error>)> {
        let clock = &self.inner.clock;
        let mut woken = pin!(self.key.wake.notified());
        let mut due = pin!(async {
            match until_us {
                Some(until_us) => {
                    let pause_us = until_us.saturating_sub(clock.local_us());
                    clock.sleep(Duration::from_micros(pause_us)).await;
                }
                None => std::future::pending().await,
            }
        });
        poll_fn(|context| {
            // Polled first, so that no reply is lost.
            if let Some(call) = call
                && let Poll::Ready(reply) = call.as_mut().poll(context)
            {
                return Poll::Ready(Some(reply));
            }
            match woken.as_mut().poll(context).is_ready() || due.as_mut().poll(context).is_ready() {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
        .await
    }

    pub(super) async fn answered(&self, lease: Option<u64>, result: Result<Share, Error>) {
        if let (Some(lease), Err(error)) = (lease, &result)
            && error.is_lapsed_lease()
        {
            self.inner.lapse(&self.key.holder, lease).await;
        }
        let now = self.inner.circumstances(&self.key.holder);
        let units = lock(&self.key.state).answered(lease, result, &now);
        if units > 0 {
            let gate = &self.key.target.gate.name;
            self.inner.events.notify(&Event::PermitsRestored { gate, units });
        }
    }
}

impl Drop for Driver {
    /// Runs when the driver's runtime ends before the driver: its callers get an error.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let now = self.inner.circumstances(&self.key.holder);
        let mut state = lock(&self.key.state);
        state.is_driven = false;
        state.close(&Error::runtime_ended());
        state.abandon(&now);
    }
}

//! Turns: a group that takes units of several keys in one step has the message of each of its keys.
//!
//! A group takes its turns in the order of the Redis keys, one after the other, so that groups do not wait for
//! each other in a circle. It holds them for one message.

use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::driver;
use super::holder::Lease;
use super::inner::{PermitsInner, message};
use super::key_state::{Busy, Circumstances, KeyState};
use super::permit::HeldUnits;
use super::registry::KeyEntry;
use super::terms::{Grant, Terms};
use crate::adaptive::Operation;
use crate::connection::Deadline;
use crate::error::{Error, QUEUE_ROOM};
use crate::fallback::OnFailure;
use crate::store::{Companion, Target};
use crate::sync::lock;

/// The maximum number of groups that wait for a key.
const MAX_TURNS: usize = 65_536;
/// The event that a group waits for until it times out.
const TURN: &str = "other acquires of its keys";

/// A group's turn at a key: no other message is sent for the key until it is dropped.
pub(crate) struct Turn {
    inner: Arc<PermitsInner>,
    key: Arc<KeyEntry>,
    /// Whether denied callers waited for units of the key before the group, so that it cannot be admitted.
    pub(crate) is_behind: bool,
}

/// Gives a turn back that arrived after its group had given up.
struct Asked<'a> {
    inner: &'a Arc<PermitsInner>,
    key: &'a Arc<KeyEntry>,
    turn: oneshot::Receiver<bool>,
}

impl Turn {
    /// Waits for the turn.
    pub(super) async fn new(
        inner: &Arc<PermitsInner>,
        target: &Target,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let (sender, turn) = oneshot::channel();
        let asked = inner.registry.change(target, inner.holder(target.hash_tag), |state| {
            let has_room = state.turns.len() < MAX_TURNS;
            if has_room {
                state.turns.push_back(sender);
            }
            has_room
        });
        let Some((key, true)) = asked else {
            return Err(Error::timeout(QUEUE_ROOM, inner.deadline));
        };
        driver::wake(inner, &key);
        let mut asked = Asked { inner, key: &key, turn };
        let is_behind = match timeout_at(deadline.at, &mut asked.turn).await {
            Ok(Ok(is_behind)) => is_behind,
            Ok(Err(_)) => return Err(Error::shut_down()),
            Err(_) => return Err(Error::timeout(TURN, deadline.after)),
        };
        let turn = Self { inner: inner.clone(), key: key.clone(), is_behind };
        inner.ensure_open().map(|()| turn)
    }

    /// Returns the lease under which the group's message is sent.
    pub(crate) async fn lease(&self, deadline: Deadline) -> Result<Lease, Error> {
        self.inner.lease(&self.key.holder, deadline).await
    }

    /// Returns the message to send. From now on, the store may count what it admits.
    pub(crate) fn message(&self, lease: &Lease) -> Companion {
        let keep = lock(&self.key.state).begin_turn(lease.number);
        message(lease, &self.key.holder, keep, false)
    }

    /// Notes that the store answered the message, and admitted this. Returns the units.
    pub(crate) fn answered(&self, lease: &Lease, admitted: Option<&Terms>) -> Option<HeldUnits> {
        let now = self.inner.circumstances(&self.key.holder);
        let grant = lock(&self.key.state).turn_answered(lease.number, admitted, &now);
        grant.zip(admitted).map(|(grant, terms)| {
            let operation = terms.adaptive.as_ref().map(|adaptive| adaptive.key.begin(grant.units));
            self.held(terms, grant, operation)
        })
    }

    /// Notes that the store did not answer the message.
    pub(crate) async fn failed(&self, lease: &Lease, error: &Error) {
        if error.is_lapsed_lease() {
            self.inner.lapse(&self.key.holder, lease.number).await;
        }
        lock(&self.key.state).turn_failed(lease.number, error, self.inner.clock.local_us());
    }

    /// Returns whether the failure policy admits these units.
    pub(crate) fn is_admitted_locally(&self, terms: &Terms) -> bool {
        let now = self.inner.circumstances(&self.key.holder);
        match terms.on_failure {
            OnFailure::Local => {
                terms.cost <= lock(&self.key.state).room(terms.current_limit(), now.instances)
            }
            policy => policy == OnFailure::Open,
        }
    }

    /// Holds units that the failure policy admitted.
    pub(crate) fn hold_locally(&self, terms: &Terms) -> HeldUnits {
        let mut state = lock(&self.key.state);
        let grant = state.grant(terms, false);
        state.hold(&grant);
        drop(state);
        self.held(terms, grant, None)
    }

    fn held(&self, terms: &Terms, grant: Grant, operation: Option<Operation>) -> HeldUnits {
        HeldUnits::new(&self.inner, &self.key, &terms.gate, grant, operation)
    }
}

/// Holds units of a key that the failure policy admitted, without a turn. Returns `None` if the registry has no
/// room for the key: the units are not counted then.
pub(super) fn hold_without_turn(
    inner: &Arc<PermitsInner>,
    target: &Target,
    terms: &Terms,
) -> Option<HeldUnits> {
    let (key, grant) = inner.registry.change(target, inner.holder(target.hash_tag), |state| {
        let grant = state.grant(terms, false);
        state.hold(&grant);
        grant
    })?;
    // The heartbeats report the units.
    driver::wake(inner, &key);
    Some(HeldUnits::new(inner, &key, &terms.gate, grant, None))
}

impl Drop for Turn {
    fn drop(&mut self) {
        driver::change(&self.inner, &self.key, |state, now_us| state.end_turn(now_us));
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // The turn is granted while the state is locked.
        let is_granted = |receiver: &mut oneshot::Receiver<bool>| {
            receiver.close();
            receiver.try_recv().is_ok()
        };
        driver::change(self.inner, self.key, |state, now_us| {
            if is_granted(&mut self.turn) {
                state.end_turn(now_us);
            }
        });
    }
}

impl KeyState {
    /// Gives the key to the next group that still waits for it.
    pub(super) fn grant_turn(&mut self) -> bool {
        while let Some(turn) = self.turns.pop_front() {
            let is_behind = self.denial.is_some() && !self.queue.is_empty();
            if turn.send(is_behind).is_ok() {
                self.busy = Busy::Lent { keep: 0, reporters: Vec::new(), sent: None };
                self.is_after_turn = true;
                return true;
            }
        }
        false
    }

    /// Returns the units to keep. Releases made until now travel with the group's message, under this lease.
    pub(super) fn begin_turn(&mut self, lease: u64) -> u64 {
        let held = self.held.total();
        if let Busy::Lent { keep, reporters, sent } = &mut self.busy {
            (*keep, *sent) = (held, Some(lease));
            reporters.append(&mut self.reporters);
            self.begin();
            self.is_after_turn = true;
        }
        held
    }

    /// The group is not sent again if the lease has lapsed since it was admitted, since its other gates were
    /// charged: the next message reports the units, under another lease.
    pub(super) fn turn_answered(
        &mut self,
        lease: u64,
        admitted: Option<&Terms>,
        now: &Circumstances,
    ) -> Option<Grant> {
        let Busy::Lent { keep, reporters, sent } = &mut self.busy else { return None };
        *sent = None;
        let keep = *keep;
        mem::take(reporters).into_iter().for_each(|reporter| drop(reporter.send(Ok(()))));
        let is_counted = now.lease == Some(lease);
        if is_counted {
            let cost = admitted.map_or(0, |terms| terms.cost);
            self.confirm(lease, keep, cost, now.now_us);
            // A message of a group gives up the place.
            self.has_place = false;
        } else {
            self.report_by(now.now_us);
        }
        let grant = admitted.map(|terms| self.grant(terms, is_counted));
        grant.iter().for_each(|grant| self.hold(grant));
        grant
    }

    pub(super) fn turn_failed(&mut self, lease: u64, error: &Error, now_us: u64) {
        let Busy::Lent { keep, reporters, sent } = &mut self.busy else { return };
        *sent = None;
        let (keep, reporters) = (*keep, mem::take(reporters));
        let mut released = Err(error.clone());
        if error.is_out_of_memory() {
            self.confirm(lease, keep, 0, now_us);
            released = Ok(());
        } else if error.is_unavailable() {
            // Of corrupt state, for example, nothing was changed.
            self.counted.doubt(lease);
        }
        // A rejected message is sent again, with its releases.
        match error.is_lapsed_lease() || error.is_stale_message() {
            true => self.reporters.extend(reporters),
            false => reporters.into_iter().for_each(|reporter| drop(reporter.send(released.clone()))),
        }
    }

    pub(super) fn end_turn(&mut self, now_us: u64) {
        if let Busy::Lent { reporters, sent, .. } = mem::take(&mut self.busy) {
            self.reporters.splice(..0, reporters);
            if let Some(lease) = sent {
                self.counted.doubt(lease);
            }
            let is_known = self.counted.units == Some(self.held.total());
            if self.is_released || !is_known || !self.reporters.is_empty() {
                self.report_by(now_us);
                self.poll_at_us = now_us;
            }
        }
    }
}

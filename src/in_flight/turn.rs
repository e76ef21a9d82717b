//! Turns: groups that take units of several keys in one step have the message of each of their keys.
//!
//! The [flights of groups](super::group_flights) under way have no key in common, so they do not wait for each other
//! in a circle. A flight holds its turns until all its groups are decided.

use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::driver;
use super::holder::{HolderLease, OwnHolder};
use super::key_state::{Busy, Circumstances, KeyState};
use super::permit::UnitsGuard;
use super::pool::{PoolState, message};
use super::registry::KeyEntry;
use super::waiting::{AcquireTerms, PermitGrant};
use crate::connection::Deadline;
use crate::error::{Error, QUEUE_ROOM};
use crate::runtime::sync::lock;
use crate::store::{Companion, HolderMessage, Target};

/// The maximum number of groups that wait for a key.
const MAX_TURNS: usize = 65_536;
/// The event that a group waits for until it times out.
const TURN: &str = "other acquires of its keys";

/// The turn of groups at a key: no other message is sent for the key until it is dropped.
pub(super) struct Turn {
    inner: Arc<PoolState>,
    key: Arc<KeyEntry>,
    /// Whether denied callers waited for units of the key before the group, so that it cannot be admitted.
    pub(super) is_behind: bool,
}

/// Gives a turn back that arrived after its group had given up.
struct Asked<'a> {
    inner: &'a Arc<PoolState>,
    key: &'a Arc<KeyEntry>,
    turn: oneshot::Receiver<bool>,
}

impl Turn {
    /// Waits for the turn.
    pub(super) async fn new(
        inner: &Arc<PoolState>,
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

    pub(super) fn holder(&self) -> &OwnHolder {
        &self.key.holder
    }

    /// Returns the lease under which the message is sent.
    pub(super) async fn lease(&self, deadline: Deadline) -> Result<HolderLease, Error> {
        self.inner.lease(&self.key.holder, deadline).await
    }

    /// Returns the units that the process keeps with the message that is about to be sent. From now on, the store may
    /// count what it admits.
    pub(super) fn begin(&self, lease: &HolderLease) -> u64 {
        lock(&self.key.state).begin_turn(lease.number, self.inner.clock.local_us())
    }

    pub(super) fn message(&self, lease: &HolderLease, keep: Option<u64>, is_shared: bool) -> Companion {
        Companion::Message(HolderMessage { is_shared, ..message(lease, &self.key.holder, keep) })
    }

    /// Notes which groups of the message the store admitted, and the first error of a group. Returns the units of each
    /// admitted group.
    pub(super) fn answered(
        &self,
        lease: &HolderLease,
        admitted: &[AcquireTerms],
        error: Option<&Error>,
    ) -> Vec<UnitsGuard> {
        let now = self.inner.circumstances(&self.key.holder);
        let grants = lock(&self.key.state).turn_answered(lease.number, admitted, error, &now);
        let held = grants.into_iter().zip(admitted).map(|(grant, terms)| {
            let operation = terms.adaptive.as_ref().map(|adaptive| adaptive.key.begin(grant.units));
            UnitsGuard::new(&self.inner, &self.key, &terms.gate, grant, operation)
        });
        held.collect()
    }
}

/// Returns the units that are left of this process's share of a limit.
pub(super) fn room(inner: &PoolState, target: &Target, terms: &AcquireTerms) -> u64 {
    let now = inner.circumstances(inner.holder(target.hash_tag));
    let room = |state: &KeyState| state.room(terms.current_limit(), now.instances);
    inner.registry.get(target).map_or_else(|| room(&KeyState::new()), |key| room(&lock(&key.state)))
}

/// Holds units of a key that the failure policy admitted to a group. Returns `None` if the registry has no room for
/// the key: the units are not counted then.
pub(super) fn hold_locally(
    inner: &Arc<PoolState>,
    target: &Target,
    terms: &AcquireTerms,
) -> Option<UnitsGuard> {
    let (key, grant) = inner.registry.change(target, inner.holder(target.hash_tag), |state| {
        let grant = state.grant(terms, false);
        state.hold(&grant);
        grant
    })?;
    // The heartbeats report the units.
    driver::wake(inner, &key);
    Some(UnitsGuard::new(inner, &key, &terms.gate, grant, None))
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = self.inner.circumstances(&self.key.holder);
        driver::change(&self.inner, &self.key, |state, _| state.end_turn(&now));
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // The turn is granted while the state is locked.
        let is_granted = |receiver: &mut oneshot::Receiver<bool>| {
            receiver.close();
            receiver.try_recv().is_ok()
        };
        let now = self.inner.circumstances(&self.key.holder);
        driver::change(self.inner, self.key, |state, _| {
            if is_granted(&mut self.turn) {
                state.end_turn(&now);
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
    pub(super) fn begin_turn(&mut self, lease: u64, now_us: u64) -> u64 {
        let held = self.held.total();
        if let Busy::Lent { keep, reporters, sent } = &mut self.busy {
            (*keep, *sent) = (held, Some(lease));
            reporters.append(&mut self.reporters);
            self.begin(now_us);
            self.is_after_turn = true;
        }
        held
    }

    /// Notes which groups were admitted, and the first error of a group, after which the store may count other units:
    /// except for lack of memory, where it has counted what the process keeps.
    ///
    /// An admitted group is not sent again if the lease has lapsed since, since its other gates were charged: the next
    /// message reports the units, under another lease.
    pub(super) fn turn_answered(
        &mut self,
        lease: u64,
        admitted: &[AcquireTerms],
        error: Option<&Error>,
        now: &Circumstances,
    ) -> Vec<PermitGrant> {
        let Busy::Lent { keep, reporters, sent } = &mut self.busy else { return Vec::new() };
        *sent = None;
        let (keep, reporters) = (*keep, mem::take(reporters));
        let error = error.filter(|error| !error.is_out_of_memory());
        let is_counted = error.is_none() && now.lease == Some(lease);
        match error {
            // A rejected message is sent again, with its releases.
            Some(error) if error.is_lapsed_lease() || error.is_stale_message() => {
                self.reporters.extend(reporters);
            }
            _ => {
                let result = error.map_or(Ok(()), |error| Err(error.clone()));
                reporters.into_iter().for_each(|reporter| drop(reporter.send(result.clone())));
            }
        }
        if is_counted {
            let units: u64 = admitted.iter().map(|terms| terms.cost).sum();
            self.confirm(lease, keep, units, now.now_us);
            // A message of a group gives up the place.
        } else if error.is_none_or(|error| error.may_have_run() || !admitted.is_empty()) {
            self.doubt_message(lease, now);
        }
        let grant = |terms| {
            let grant = self.grant(terms, is_counted);
            self.hold(&grant);
            grant
        };
        admitted.iter().map(grant).collect()
    }

    pub(super) fn end_turn(&mut self, now: &Circumstances) {
        if let Busy::Lent { reporters, sent, .. } = mem::take(&mut self.busy) {
            self.reporters.splice(..0, reporters);
            if let Some(lease) = sent {
                self.doubt_message(lease, now);
            }
            let is_known = self.counted.units == Some(self.held.total());
            if self.is_released || !is_known || !self.reporters.is_empty() {
                self.report_by(now.now_us);
                self.poll_at_us = now.now_us;
            }
        }
    }
}

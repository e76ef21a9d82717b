//! Stage 1: operators' overrides. An override of a key replaces the gate's quota for that key, and a switch
//! replaces the gate's mode, also shadow mode.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::components::Pipeline;
use crate::connection::Deadline;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::key::{HashTag, Keyspace};
use crate::local::overrides::{KeyOverrides, Override, Overrides, Switch};
use crate::pipeline::request::{GateSpec, Request};
use crate::runtime::sharded_arc::ShardedArc;

/// What is left of the deadline at least, after the wait for the overrides.
const SHORTEST: Duration = Duration::from_millis(1);

pub(super) enum Resolved<'a> {
    /// The next stages decide, with the settings that are in force for this key.
    Check(Request<'a>),
    /// The gate is switched open or closed, which decides.
    Switched(Request<'a>, Result<Decision, Error>),
}

impl Pipeline {
    #[inline]
    pub(super) fn resolve<'a>(&self, request: Request<'a>) -> Resolved<'a> {
        // Almost always false.
        match !self.overrides.is_calm() || request.at_most.is_some() {
            true => match self.resolve_overridden(request) {
                Resolved::Check(request) => Resolved::Check(self.restrict(request)),
                switched => switched,
            },
            false => Resolved::Check(request),
        }
    }

    /// Lowers the limit of a request that may use only a part of it.
    fn restrict<'a>(&self, mut request: Request<'a>) -> Request<'a> {
        if let Ok(info) = request.gate.info() {
            let quota = info.quota.at_most(request.at_most);
            if quota != info.quota {
                let restricted = self.info_with_quota(info, quota);
                request.whole_limit = Some(info.quota.limit());
                Arc::make_mut(request.gate.to_mut()).info =
                    restricted.map(|info| Arc::new(ShardedArc::new(info)));
            }
        }
        request
    }

    /// Before stage 1: waits for a new reading of the overrides if the process was idle. The wait is a part of the
    /// deadline. While Redis is unavailable, the last known overrides are in force.
    pub(crate) async fn follow<'a>(&self, request: Request<'a>) -> Request<'a> {
        match self.overrides.is_calm() {
            true => request,
            false => Request { deadline: self.follow_within(request.deadline).await, ..request },
        }
    }

    /// Returns whether an override may be active, or the process may have to read them.
    pub(crate) fn needs_following(&self) -> bool {
        !self.overrides.is_calm()
    }

    /// Does the same as [`follow`](Self::follow) for several requests.
    pub(super) async fn follow_each<'a>(&self, mut requests: Vec<Request<'a>>) -> Vec<Request<'a>> {
        if !self.overrides.is_calm() {
            let own = requests.iter().filter_map(|request| request.deadline).min();
            let left = Box::pin(self.follow_within(own)).await;
            if left != own {
                requests.iter_mut().for_each(|request| request.deadline = left);
            }
        }
        requests
    }

    /// Does the same as [`follow`](Self::follow). Returns the deadline that is left.
    #[cold]
    pub(crate) async fn follow_within(&self, own: Option<Duration>) -> Option<Duration> {
        let is_open = || self.breaker.as_ref().is_some_and(|breaker| breaker.is_open(HashTag::default()));
        if !self.overrides.note_check() || is_open() {
            return own;
        }
        let (begun, longest) = (self.stopwatch(), self.longest(own));
        self.overrides.renewed(Deadline::new(longest)).await;
        Some(longest.saturating_sub(begun.elapsed()).max(SHORTEST))
    }

    #[cold]
    fn resolve_overridden<'a>(&self, request: Request<'a>) -> Resolved<'a> {
        let Some(found) = self.find_overrides(&request.gate, &request.key) else {
            return Resolved::Check(request);
        };
        let switch = found.switch;
        let gate = match request.gate {
            Cow::Borrowed(gate) => apply(gate, found),
            Cow::Owned(gate) => Cow::Owned(apply(&gate, found).into_owned()),
        };
        let request = Request { gate, ..request };
        let is_allowed = match switch {
            Some(Switch::Open) => true,
            Some(Switch::Closed) => false,
            Some(Switch::Shadow) | None => return Resolved::Check(request),
        };
        // This check does not reach the store, whose calls start these jobs otherwise.
        self.ensure_background_jobs();
        let decided = match self.ensure_open() {
            Ok(()) => request.fixed_decision(is_allowed, Source::Switch),
            Err(error) => Err(request.with_context(error)),
        };
        Resolved::Switched(request, decided)
    }

    /// Returns the settings that decide this key: the gate's own unless it is overridden.
    pub(crate) fn effective<'a>(&self, gate: &'a Arc<GateSpec>, key: &[u8]) -> Cow<'a, Arc<GateSpec>> {
        // A caller that waits for a permit, for example, has the process continue to read.
        if !self.overrides.is_calm() {
            self.overrides.note_check();
        }
        match self.overrides.is_any() {
            true => self.find_overrides(gate, key).map_or(Cow::Borrowed(gate), |found| apply(gate, found)),
            false => Cow::Borrowed(gate),
        }
    }

    pub(crate) fn switch(&self, gate: &str) -> Option<Switch> {
        self.overrides.switch(gate)
    }

    fn find_overrides(&self, gate: &GateSpec, key: &[u8]) -> Option<KeyOverrides> {
        let info = gate.info().ok()?;
        Some(self.overrides.of_key(info, key, |quota| self.info_with_quota(info, quota)))
    }
}

/// Skips a quota in flight for a gate of rates, and the reverse: the service calls checks or acquires, and each is
/// an error for the other kind.
fn apply(gate: &Arc<GateSpec>, mut found: KeyOverrides) -> Cow<'_, Arc<GateSpec>> {
    let is_in_flight = gate.info().is_ok_and(|info| info.quota.is_in_flight());
    found.gate = found.gate.filter(|other| other.mine().quota.is_in_flight() == is_in_flight);
    let is_shadow = found.switch.map_or(gate.is_shadow, |switch| switch == Switch::Shadow);
    if found.gate.is_none() && is_shadow == gate.is_shadow {
        return Cow::Borrowed(gate);
    }
    Cow::Owned(Arc::new(GateSpec {
        // Leases were taken under the gate's own quota.
        leases: gate.leases.clone().filter(|_| found.gate.is_none()),
        info: found.gate.map_or_else(|| gate.info.clone(), Ok),
        on_failure: gate.on_failure,
        on_lapse: gate.on_lapse,
        adaptive: gate.adaptive,
        is_shadow,
        ends_holds: gate.ends_holds,
        ban: gate.ban,
        charges_used: gate.charges_used,
    }))
}

/// # Overrides, for operators
impl Pipeline {
    /// Returns the overrides, to write one for this gate.
    pub(crate) fn overrides_for(&self, gate: &str) -> Result<&Overrides, Error> {
        self.ensure_open()?;
        Keyspace::check_gate_name(gate)?;
        Ok(&self.overrides)
    }

    pub(crate) async fn all_overrides(&self) -> Result<Vec<Override>, Error> {
        self.ensure_open()?;
        self.overrides.all().await
    }

    #[cfg(feature = "admin")]
    pub(crate) async fn read_overrides(&self) -> Result<(), Error> {
        self.overrides.read().await
    }
}

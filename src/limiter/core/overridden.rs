//! Checks under operators' overrides for the whole fleet.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::future::join;

use super::answers::static_decision;
use super::{Core, with_context};
use crate::check::{Check, CheckRef};
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::gate::Gate;
use crate::key::Keyspace;
use crate::limiter::check_all::all_decision;
use crate::overrides::{Override, Overrides, Switch};
use crate::sharded_arc::ShardedArc;
use crate::store::GateInfo;

impl Core {
    /// Returns whether any override is active. Almost always false.
    #[inline]
    pub(crate) fn has_overrides(&self) -> bool {
        self.overrides.is_any()
    }

    pub(crate) fn switch(&self, gate: &str) -> Option<Switch> {
        self.overrides.switch(gate)
    }

    pub(crate) fn overriding(&self, gate: &GateInfo, key: &[u8]) -> Option<Arc<ShardedArc<GateInfo>>> {
        self.overrides.overriding(gate, key, |quota| self.gate_info(&gate.name, quota))
    }

    /// Returns the overrides, to write one for this gate.
    pub(crate) fn overrides_for(&self, gate: &str) -> Result<&Overrides, Error> {
        self.ensure_open()?;
        Keyspace::check_gate_name(gate)?;
        Ok(&self.overrides)
    }

    /// Returns a key as written in the store.
    pub(crate) fn encoded(&self, key: &[u8]) -> String {
        self.keyspace.encoded(key)
    }

    #[cfg(feature = "cli")]
    pub(crate) async fn read_overrides(&self) -> Result<(), Error> {
        self.overrides.read().await
    }

    pub(crate) async fn all_overrides(&self) -> Result<Vec<Override>, Error> {
        self.ensure_open()?;
        self.overrides.all().await
    }

    /// Returns the decision on every check of a gate that is switched open or closed.
    pub(crate) fn switched(&self, check: CheckRef<'_>) -> Option<Result<Decision, Error>> {
        // A check that is decided here does not reach the store, whose calls start these jobs otherwise.
        self.ensure_background_jobs();
        let allowed = match self.overrides.switch(&check.gate.info().ok()?.name)? {
            Switch::Open => true,
            Switch::Closed => false,
            Switch::Shadow => return None,
        };
        let open = self.ensure_open().map_err(|error| with_context(check, error));
        Some(open.and_then(|()| static_decision(check, allowed, Source::Switch)))
    }

    /// Lets a check of a gate in shadow pass that the gate could not decide: Redis is unavailable, the
    /// key's state is corrupt, the cost is above the limit. A limiter that was shut down and a wrong
    /// configuration stay errors.
    pub(crate) fn admit_shadowed(
        &self,
        check: CheckRef<'_>,
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        match decided {
            Err(error) if !error.is_shut_down() && !error.is_config() => {
                self.report(check, static_decision(check, true, Source::Open))
            }
            decided => decided,
        }
    }

    pub(super) async fn check_each_with_overrides(
        &self,
        checks: &[CheckRef<'_>],
    ) -> Vec<Result<Decision, Error>> {
        let gates: Vec<Cow<'_, Gate>> =
            checks.iter().map(|check| check.gate.effective_gate(check.key)).collect();
        let checks: Vec<_> =
            checks.iter().zip(&gates).map(|(check, gate)| CheckRef { gate, ..*check }).collect();
        let switched: Vec<_> = checks.iter().map(|check| self.switched(*check)).collect();
        let left = checks.iter().zip(&switched).filter(|(_, switched)| switched.is_none());
        let left: Vec<_> = left.map(|(check, _)| *check).collect();
        let mut decided = self.decide_each(&left).await.into_iter();
        let mut next = || decided.next().unwrap_or_else(|| Err(Error::unavailable("no reply")));
        let of_each = checks.iter().zip(switched).map(|(check, switched)| match switched {
            Some(switched) => self.report(*check, switched),
            None if check.gate.is_shadow => self.admit_shadowed(*check, next()),
            None => next(),
        });
        of_each.collect()
    }

    /// Takes all or nothing of the gates that are neither switched nor in shadow. Each gate in shadow is
    /// checked separately at the same time, and cannot fail the others, which may already be charged.
    pub(in crate::limiter) async fn take_all_with_overrides(
        &self,
        checks: Vec<Check>,
        n: u64,
    ) -> Result<AllDecision, Error> {
        let checks: Vec<Check> = checks.into_iter().map(Check::effective_gate).collect();
        let switched = checks.iter().map(|check| self.switched(check.as_ref()).transpose());
        let mut decisions = switched.collect::<Result<Vec<Option<Decision>>, Error>>()?;
        if n > 0 {
            let reported = checks.iter().zip(&decisions).filter(|(check, _)| check.cost > 0);
            reported
                .filter_map(|(_, decision)| decision.as_ref())
                .for_each(|decision| self.notify_decided(decision));
        }
        // A group that a closed gate denies charges nothing.
        let is_refused = decisions.iter().flatten().any(|decision| !decision.is_allowed());
        let n = if is_refused { 0 } else { n };
        let left = (0..checks.len()).filter(|&at| decisions[at].is_none());
        let (shadowed, together): (Vec<usize>, Vec<usize>) = left.partition(|&at| checks[at].gate.is_shadow);
        let shadow_checks: Vec<_> = shadowed
            .iter()
            .map(|&at| CheckRef { cost: if n > 0 { checks[at].cost } else { 0 }, ..checks[at].as_ref() })
            .collect();
        let taking = async {
            match together.is_empty() {
                true => Ok((true, Vec::new())),
                false => self.take_together(together.iter().map(|&at| checks[at].clone()).collect(), n).await,
            }
        };
        let (taken, shadow_decisions) = join(taking, self.decide_each(&shadow_checks)).await;
        let (passes, taken) = taken?;
        for (at, decision) in together.into_iter().zip(taken) {
            decisions[at] = Some(decision);
        }
        for ((&at, check), decision) in shadowed.iter().zip(shadow_checks).zip(shadow_decisions) {
            decisions[at] = Some(self.admit_shadowed(check, decision)?);
        }
        let decisions = decisions.into_iter().flatten().collect();
        let binds = |at: usize| (n == 0 || checks[at].cost > 0) && !checks[at].gate.is_shadow;
        Ok(all_decision(passes && !is_refused, decisions, binds))
    }
}

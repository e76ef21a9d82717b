//! Checks under operators' overrides for the whole fleet.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::future::join;

use super::answers::undecided;
use super::{Core, about};
use crate::ask::{Ask, AskRef};
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::gate::Gate;
use crate::key::Keyspace;
use crate::limiter::check_all::all_decision;
use crate::orders::{Order, Orders, Switch};
use crate::per_thread::PerThread;
use crate::store::GateInfo;

impl Core {
    /// Returns whether any override is active. Almost always false.
    #[inline]
    pub(crate) fn has_orders(&self) -> bool {
        self.orders.is_any()
    }

    pub(crate) fn switch(&self, gate: &str) -> Option<Switch> {
        self.orders.switch(gate)
    }

    pub(crate) fn overriding(&self, gate: &GateInfo, key: &[u8]) -> Option<Arc<PerThread<GateInfo>>> {
        self.orders.overriding(gate, key, |quota| self.gate_info(&gate.name, quota))
    }

    /// Returns the overrides, to write one for this gate.
    pub(crate) fn orders_for(&self, gate: &str) -> Result<&Orders, Error> {
        self.open()?;
        Keyspace::check_gate_name(gate)?;
        Ok(&self.orders)
    }

    /// Returns a key as written in the store.
    pub(crate) fn encoded(&self, key: &[u8]) -> String {
        self.keyspace.encoded(key)
    }

    #[cfg(feature = "cli")]
    pub(crate) async fn read_orders(&self) -> Result<(), Error> {
        self.orders.read().await
    }

    pub(crate) async fn all_orders(&self) -> Result<Vec<Order>, Error> {
        self.open()?;
        self.orders.all().await
    }

    /// Returns the decision on every check of a gate that is switched open or closed.
    pub(crate) fn switched(&self, ask: AskRef<'_>) -> Option<Result<Decision, Error>> {
        // A check that is decided here does not reach the store, whose calls start these jobs otherwise.
        self.ensure_background_jobs();
        let allowed = match self.orders.switch(&ask.gate.info().ok()?.name)? {
            Switch::Open => true,
            Switch::Closed => false,
            Switch::Shadow => return None,
        };
        let open = self.open().map_err(|error| about(ask, error));
        Some(open.and_then(|()| undecided(ask, allowed, Source::Switch)))
    }

    /// Lets a check of a gate in shadow pass that the gate could not decide: Redis is unavailable, the
    /// key's state is corrupt, the cost is above the limit. A limiter that was shut down and a wrong
    /// configuration stay errors.
    pub(crate) fn watched(
        &self,
        ask: AskRef<'_>,
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        match decided {
            Err(error) if !error.is_shut_down() && !error.is_config() => {
                self.told(ask, undecided(ask, true, Source::Open))
            }
            decided => decided,
        }
    }

    pub(super) async fn check_each_under_orders(&self, asks: &[AskRef<'_>]) -> Vec<Result<Decision, Error>> {
        let gates: Vec<Cow<'_, Gate>> = asks.iter().map(|ask| ask.gate.in_force(ask.key)).collect();
        let asks: Vec<_> = asks.iter().zip(&gates).map(|(ask, gate)| AskRef { gate, ..*ask }).collect();
        let switched: Vec<_> = asks.iter().map(|ask| self.switched(*ask)).collect();
        let left = asks.iter().zip(&switched).filter(|(_, switched)| switched.is_none());
        let left: Vec<_> = left.map(|(ask, _)| *ask).collect();
        let mut decided = self.decide_each(&left).await.into_iter();
        let mut next = || decided.next().unwrap_or_else(|| Err(Error::unavailable("no reply")));
        let of_each = asks.iter().zip(switched).map(|(ask, switched)| match switched {
            Some(switched) => self.told(*ask, switched),
            None if ask.gate.is_shadow => self.watched(*ask, next()),
            None => next(),
        });
        of_each.collect()
    }

    /// Takes all or nothing of the gates that are neither switched nor in shadow. Each gate in shadow is
    /// checked separately at the same time, and cannot fail the others, which may already be charged.
    pub(in crate::limiter) async fn take_all_under_orders(
        &self,
        asks: Vec<Ask>,
        n: u64,
    ) -> Result<AllDecision, Error> {
        let asks: Vec<Ask> = asks.into_iter().map(Ask::in_force).collect();
        let switched = asks.iter().map(|ask| self.switched(ask.as_ref()).transpose());
        let mut decisions = switched.collect::<Result<Vec<Option<Decision>>, Error>>()?;
        if n > 0 {
            let told = asks.iter().zip(&decisions).filter(|(ask, _)| ask.cost > 0);
            told.filter_map(|(_, decision)| decision.as_ref())
                .for_each(|decision| self.tell_decided(decision));
        }
        // A group that a closed gate denies charges nothing.
        let is_refused = decisions.iter().flatten().any(|decision| !decision.is_allowed());
        let n = if is_refused { 0 } else { n };
        let left = (0..asks.len()).filter(|&at| decisions[at].is_none());
        let (watched, together): (Vec<usize>, Vec<usize>) = left.partition(|&at| asks[at].gate.is_shadow);
        let watching: Vec<_> = watched
            .iter()
            .map(|&at| AskRef { cost: if n > 0 { asks[at].cost } else { 0 }, ..asks[at].as_ref() })
            .collect();
        let taking = async {
            match together.is_empty() {
                true => Ok((true, Vec::new())),
                false => self.take_together(together.iter().map(|&at| asks[at].clone()).collect(), n).await,
            }
        };
        let (taken, seen) = join(taking, self.decide_each(&watching)).await;
        let (passes, taken) = taken?;
        for (at, decision) in together.into_iter().zip(taken) {
            decisions[at] = Some(decision);
        }
        for ((&at, ask), decision) in watched.iter().zip(watching).zip(seen) {
            decisions[at] = Some(self.watched(ask, decision)?);
        }
        let decisions = decisions.into_iter().flatten().collect();
        let binds = |at: usize| (n == 0 || asks[at].cost > 0) && !asks[at].gate.is_shadow;
        Ok(all_decision(passes && !is_refused, decisions, binds))
    }
}

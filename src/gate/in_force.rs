//! A gate under what operators have ordered for it.

use std::borrow::Cow;

use super::Gate;
use crate::ask::AskRef;
use crate::decision::Decision;
use crate::error::Error;
use crate::orders::Switch;
use crate::store::Write;

impl Gate {
    /// The gate that decides this key: itself, but for what was ordered.
    pub(crate) fn in_force(&self, key: &[u8]) -> Cow<'_, Self> {
        let Some(info) = self.info().ok().filter(|_| self.core.has_orders()) else {
            return Cow::Borrowed(self);
        };
        let is_watched = self.core.switch(&info.name) == Some(Switch::Shadow);
        let instead = self.core.overriding(info, key);
        if instead.is_none() && (!is_watched || self.is_shadow) {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self {
            core: self.core.clone(),
            // What is leased was leased by the gate's own quota.
            leases: self.leases.clone().filter(|_| instead.is_none()),
            info: instead.map_or_else(|| self.info.clone(), Ok),
            on_failure: self.on_failure,
            is_shadow: self.is_shadow || is_watched,
        })
    }

    pub(super) async fn decide_under_orders(&self, ask: &AskRef<'_>) -> Result<Decision, Error> {
        if let Some(switched) = self.core.switched(*ask) {
            // Who asks in a loop should let others run now and then.
            tokio::task::coop::consume_budget().await;
            return self.core.told_at_once(*ask, switched);
        }
        let gate = self.in_force(ask.key);
        let decided = gate.decide_by_itself(&AskRef { gate: &gate, ..*ask }).await;
        if gate.is_shadow { self.core.watched(*ask, decided) } else { decided }
    }

    pub(super) fn try_under_orders(&self, key: &[u8], cost: u64) -> Option<Decision> {
        let ask = AskRef::new(self, key, cost);
        match self.core.switched(ask).filter(|_| cost > 0) {
            Some(switched) => self.core.told_at_once(ask, switched).ok(),
            None => self.in_force(key).try_by_itself(key, cost),
        }
    }

    /// To the counts by which the key is decided.
    pub(super) async fn write_in_force(&self, key: &[u8], write: Write) -> Result<(), Error> {
        let gate = self.in_force(key);
        self.core.write(AskRef::new(&gate, key, 0), write).await
    }

    /// Also to the counts of its own quota, which will be in force again.
    pub(super) async fn write_wherever(&self, key: &[u8], write: Write) -> Result<(), Error> {
        let gate = self.in_force(key);
        self.core.write(AskRef::new(&gate, key, 0), write).await?;
        match gate.redis_key(key)? == self.redis_key(key)? {
            true => Ok(()),
            false => self.core.write(AskRef::new(self, key, 0), write).await,
        }
    }
}

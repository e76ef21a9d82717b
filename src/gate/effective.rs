//! A gate with the overrides that operators have set for it.

use std::borrow::Cow;

use super::Gate;
use crate::check::CheckRef;
use crate::decision::Decision;
use crate::error::Error;
use crate::overrides::Switch;
use crate::store::Write;

impl Gate {
    /// Returns the gate that decides this key: this gate unless it is overridden.
    pub(crate) fn effective_gate(&self, key: &[u8]) -> Cow<'_, Self> {
        let Some(info) = self.info().ok().filter(|_| self.core.has_overrides()) else {
            return Cow::Borrowed(self);
        };
        let is_shadowed = self.core.switch(&info.name) == Some(Switch::Shadow);
        let instead = self.core.overriding(info, key);
        if instead.is_none() && (!is_shadowed || self.is_shadow) {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self {
            core: self.core.clone(),
            // Leases were taken under the gate's own quota.
            leases: self.leases.clone().filter(|_| instead.is_none()),
            info: instead.map_or_else(|| self.info.clone(), Ok),
            on_failure: self.on_failure,
            is_shadow: self.is_shadow || is_shadowed,
        })
    }

    pub(super) async fn decide_with_overrides(&self, check: &CheckRef<'_>) -> Result<Decision, Error> {
        if let Some(switched) = self.core.switched(*check) {
            // Lets other tasks run if a caller checks in a loop.
            tokio::task::coop::consume_budget().await;
            return self.core.report_immediate(*check, switched);
        }
        let gate = self.effective_gate(check.key);
        let decided = gate.decide_by_itself(&CheckRef { gate: &gate, ..*check }).await;
        if gate.is_shadow { self.core.admit_shadowed(*check, decided) } else { decided }
    }

    pub(super) fn try_with_overrides(&self, key: &[u8], cost: u64) -> Option<Decision> {
        let check = CheckRef::new(self, key, cost);
        match self.core.switched(check).filter(|_| cost > 0) {
            Some(switched) => self.core.report_immediate(check, switched).ok(),
            None => self.effective_gate(key).try_by_itself(key, cost),
        }
    }

    /// Writes to the state that decides the key.
    pub(super) async fn write_effective(&self, key: &[u8], write: Write) -> Result<(), Error> {
        let gate = self.effective_gate(key);
        self.core.write(CheckRef::new(&gate, key, 0), write).await
    }

    /// Also writes to the state of the gate's own quota, which decides again once the override ends.
    pub(super) async fn write_wherever(&self, key: &[u8], write: Write) -> Result<(), Error> {
        let gate = self.effective_gate(key);
        self.core.write(CheckRef::new(&gate, key, 0), write).await?;
        match gate.redis_key(key)? == self.redis_key(key)? {
            true => Ok(()),
            false => self.core.write(CheckRef::new(self, key, 0), write).await,
        }
    }
}

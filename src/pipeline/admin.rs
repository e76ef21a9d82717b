//! Access for operators: overrides, the store, and the format of keys.

use super::components::Pipeline;
use crate::error::Error;
use crate::key::Keyspace;
use crate::local::overrides::{Override, Overrides};
#[cfg(feature = "admin")]
use crate::store::{Store, Target, Write};

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

    /// Returns a key as written in the store.
    pub(crate) fn encoded(&self, key: &[u8]) -> String {
        self.keyspace.encoded(key)
    }

    #[cfg(feature = "admin")]
    pub(crate) async fn read_overrides(&self) -> Result<(), Error> {
        self.overrides.read().await
    }

    /// Writes to each of these states with the deadline of operators, also while the circuit is open. Then forgets their
    /// cached denials.
    #[cfg(feature = "admin")]
    pub(crate) async fn write_for_operator(&self, states: &[Target], write: Write) -> Result<(), Error> {
        self.ensure_open()?;
        for state in states {
            let _forget = self.forget_on_drop(state);
            self.store.write(state, write, self.operator_deadline()).await?;
        }
        Ok(())
    }

    #[cfg(feature = "admin")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    #[cfg(feature = "admin")]
    pub(crate) const fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }
}

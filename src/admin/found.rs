//! States that were found, with their content.

use std::time::Duration;

use super::name::Name;
use super::usage::Usage;
use crate::error::Error;
use crate::quota::Quota;

/// A key with its content.
#[derive(Clone, Debug)]
pub struct Found {
    /// The parsed Redis key.
    pub name: Name,
    /// The usage. An error with [`is_corrupt_state`](Error::is_corrupt_state) if tidegate did not write the
    /// content, another error if Redis rejected the read of this key.
    pub usage: Result<Usage, Error>,
    /// The time until Redis removes the key. `None` if the key never expires, as keys that tidegate did not
    /// write, or if Redis rejected the read.
    pub expires_in: Option<Duration>,
}

impl Found {
    /// Returns a quota with the Redis key of this state: the quota that wrote it, if the state contains it.
    /// Else a quota with the algorithm and window of the Redis key, and limit 1.
    ///
    /// # Errors
    ///
    /// The error of [`usage`](Self::usage), if there is one.
    pub fn quota(&self) -> Result<Quota, Error> {
        let written_by = self.usage.as_ref().map_err(Error::clone)?.quota;
        written_by.map_or_else(|| self.name.shape.quota(1), Ok)
    }
}

/// The states of one key, from [`Inspector::find_key`](super::Inspector::find_key).
#[derive(Debug, Default)]
pub struct KeyStates {
    /// The states, by their Redis keys.
    pub found: Vec<Found>,
    /// The states that have holds. A state may have expired before its holds.
    pub with_holds: Vec<Name>,
    /// The states whose keys have denials counted for a ban. A state may have expired before its count.
    pub with_denials: Vec<Name>,
}

impl KeyStates {
    /// Returns the states of the key, and those of which only holds or counted denials are left.
    #[must_use]
    pub fn names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.found.iter().map(|found| found.name.clone()).collect();
        for name in self.with_holds.iter().chain(&self.with_denials) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

//! Finds the states of one key, and the forms in which a gate's keys are stored.

use std::collections::BTreeMap;

use super::usage::KeyStates;
use super::{GivenKey, Inspector, Name, Shape};
use crate::error::Error;

/// The maximum states of one key. A namespace has far fewer gates.
const MAX_STATES: usize = 10_000;

/// # Searches
impl Inspector {
    /// Finds the states of a key at one gate or at all gates, by scanning all keys. `written` has its
    /// [stored forms](Self::stored_forms).
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the key has more than 10,000 states; otherwise as [`Scan::next`](super::Scan::next) and
    /// [`read`](Self::read).
    pub async fn find_key(&self, gate: Option<&str>, written: &[String]) -> Result<KeyStates, Error> {
        let (mut names, mut with_holds, mut with_denials): (Vec<Name>, Vec<Name>, Vec<Name>) =
            Default::default();
        let mut others = Vec::new();
        for written in written {
            let mut scan = self.scan_key(gate, written);
            while let Some(page) = scan.next().await? {
                others.extend(page.others.into_iter().take(MAX_STATES - others.len()));
                // The pattern also matches longer keys with the same end.
                let is_of_key =
                    |name: &Name| name.written == *written && gate.is_none_or(|gate| name.gate == gate);
                names.extend(page.names.into_iter().filter(is_of_key));
                with_holds.extend(page.with_holds.into_iter().filter(is_of_key));
                with_denials.extend(page.with_denials.into_iter().filter(is_of_key));
                if names.len().max(with_holds.len()).max(with_denials.len()) > MAX_STATES {
                    return Err(Error::config(format!(
                        "this key has more than {MAX_STATES} states: give its gate"
                    )));
                }
            }
        }
        for names in [&mut names, &mut with_holds, &mut with_denials] {
            names.sort_by(|a, b| a.redis_key.cmp(&b.redis_key));
            names.dedup();
        }
        let mut found = self.read(&names).await?;
        found.sort_by(|a, b| a.name.redis_key.cmp(&b.name.redis_key));
        Ok(KeyStates { found, with_holds, with_denials, others })
    }

    /// Returns the message that a key has no state.
    #[must_use]
    pub fn no_state(&self, gate: Option<&str>, key: &GivenKey) -> String {
        let at = gate.map(|gate| format!(" at {gate}")).unwrap_or_default();
        format!("no state of {key}{at} in namespace {}", self.namespace())
    }

    /// Returns the forms in which the keys of a gate are stored, each with one of these keys, by scanning all keys.
    pub(super) async fn gate_shapes(&self, gate: &str) -> Result<BTreeMap<Shape, Name>, Error> {
        let mut shapes = BTreeMap::new();
        let mut scan = self.scan(Some(gate));
        while let Some(page) = scan.next().await? {
            for name in page.names.into_iter().filter(|name| name.gate == gate) {
                shapes.entry(name.shape).or_insert(name);
            }
        }
        Ok(shapes)
    }
}
